"""`probattn demo` and `probattn presets`."""

import re

import pytest

from probattn.experiments.config import presets
from probattn.experiments.reporting import posterior_words, report
from probattn.experiments.runs.folder import epochs_done, read_record

KEP, SOFTMAX, CGP = "digits/kep-svgp", "digits/softmax", "digits/cgp"


def occurrences(name, text):
    """The number of times that a name stands alone."""
    return len(re.findall(rf"(?<![\w/-]){re.escape(name)}(?![\w/-])", text))


def headings(name, text):
    """The number of lines that are a name alone."""
    return text.splitlines().count(name)


def rows(name, text):
    """The number of table rows that name a run."""
    return sum(occurrences(name, line) for line in text.splitlines() if line.startswith("│"))


def test_demo_compares_the_twins_and_goes_on_where_it_stopped(command, tmp_path, monkeypatch, tiny, is_one_message):
    for name in (KEP, SOFTMAX):
        monkeypatch.setitem(presets.PRESETS, name, presets.preset(name).with_changes(tiny))
    warnings = {KEP: ["posterior of u: not converged"], SOFTMAX: []}
    monkeypatch.setattr(posterior_words, "warnings", lambda result: warnings[result.label])
    demo = ("demo", "--out", tmp_path / "demo", "--layers", "softmax,kep-svgp", "--workers", 1)
    code, text, _ = command(*demo, "--epochs", 3)
    assert code == 0
    for word in ("ACC", "MCC", "AURC", "AUROC", "FPR95", "ECE", "NLL", "Brier"):
        assert word in text
    assert headings(KEP, text) == headings(SOFTMAX, text) == 1
    assert rows(KEP, text) == rows(SOFTMAX, text) == 2  # one in each table
    assert [line for line in text.splitlines() if "posterior" in line] == [f"{KEP}: posterior of u: not converged"]
    assert text.count("corrupted images") == 1
    assert text.endswith(f"report: {tmp_path / 'demo' / 'report.html'}\n")
    assert KEP in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    before = (tmp_path / "demo" / "kep-svgp" / "last.pt").read_bytes()
    monkeypatch.setattr(report, "PANELS", ())
    monkeypatch.setattr(report, "write", lambda *arguments, **options: None)
    again = command(*demo, "--epochs", 3)
    assert again[:2] == (0, text)
    assert (tmp_path / "demo" / "kep-svgp" / "last.pt").read_bytes() == before
    assert command(*demo, "--epochs", 4)[0] == 0
    assert epochs_done(tmp_path / "demo" / "kep-svgp") == 4
    code, _, err = command(*demo, "--epochs", 3)
    assert code == 1
    assert is_one_message(err, "train.epochs: 4 → 3", "choose another folder with --out")


@pytest.mark.usefixtures("no_figures")
def test_demo_of_all_layers_and_of_some(command, tmp_path, monkeypatch, tiny, contents):
    names = presets.digits("all")
    for name in names:
        monkeypatch.setitem(
            presets.PRESETS, name, presets.preset(name).with_changes([*tiny, "data.limit=60", "train.num_samples=2"])
        )
    shown = []
    monkeypatch.setattr(report, "write", lambda path, runs, **options: shown.append([run.result.name for run in runs]))
    demo = ("demo", "--out", tmp_path / "demo", "--epochs", 3, "--workers", 1)
    code, text, _ = command(*demo, "--layers", "all")
    assert code == 0
    assert shown.pop() == names
    assert [name for name in names if headings(name, text) != 1] == []
    assert [name for name in names if rows(name, text) != 2] == []  # one in each table
    for name in names:
        folder = tmp_path / "demo" / name.partition("/")[2]
        settings = read_record(folder).settings
        assert settings.epochs == 3
        assert epochs_done(folder) == settings.train.epochs
        assert (folder / "warm-start.json").exists() == (presets.preset(name).warm_start is not None)
    before = contents(tmp_path / "demo")
    code, text, _ = command(*demo, "--layers", "cgp,softmax")
    assert code == 0
    assert shown.pop() == [CGP, SOFTMAX]
    assert contents(tmp_path / "demo") == before


def test_demo_of_unknown_layers(command, tmp_path, is_one_message):
    code, text, err = command("demo", "--out", tmp_path / "demo", "--layers", "softmax,gcp")
    assert (code, text) == (1, "")
    assert is_one_message(err, "unknown layers 'gcp'", "all, or some of", "softmax,kep-svgp,kernel")
    assert not (tmp_path / "demo").exists()


def test_presets_show_the_epochs_of_both_phases(command):
    code, text, _ = command("presets")
    assert code == 0
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    cells = {name: [cell.strip() for cell in row.split("│")[1:-1]] for name, row in rows.items()}
    assert cells["cgp/cifar10"][-3:] == ["cgp", "all", "200 + 400"]
    assert cells["cgp/cifar10-softmax"][-1] == "600"
    assert cells[KEP][-3:-1] == ["kep-svgp", "last 1"]
    assert "warm_start.epochs=N" in text


def test_presets_are_listed_in_full_however_narrow(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, text, _ = command("presets")
    assert code == 0
    assert [name for name in presets.PRESETS if not occurrences(name, text)] == []
    assert "…" not in text
