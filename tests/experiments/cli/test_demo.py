"""`probattn demo` and `probattn presets`."""

import functools
import re

from probattn.experiments.config import presets
from probattn.experiments.studies import study
from probattn.inference.io import checkpoint

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"


def occurrences(name, text):
    """The number of times that a name stands alone."""
    return len(re.findall(rf"(?<![\w/-]){re.escape(name)}(?![\w/-])", text))


def test_demo_compares_layers_and_goes_on_where_it_stopped(command, tmp_path, monkeypatch, tiny, is_one_message):
    monkeypatch.setattr(study, "plan", functools.partial(study.plan, changes=tiny))
    demo = ("demo", "--out", tmp_path / "demo", "--layers", "softmax,kep-svgp", "--workers", 1)
    code, text, _ = command(*demo, "--epochs", 3)
    assert code == 0
    for word in ("ACC", "MCC", "AURC", "AUROC", "FPR95", "ECE", "NLL", "Brier"):
        assert word in text
    assert occurrences(KEP, text) >= 2  # one in each table
    assert f"{KEP}: " in text  # what its posterior contributes
    assert KEP in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    folder = tmp_path / "demo" / KEP / "seed-0"
    before = (folder / "last.pt").read_bytes()
    assert command(*demo, "--epochs", 3)[:2] == (0, text)
    assert (folder / "last.pt").read_bytes() == before
    assert command(*demo, "--epochs", 4)[0] == 0
    assert checkpoint.read(folder / "last.pt")["extra"]["epoch"] == 4
    code, _, err = command(*demo, "--epochs", 3)
    assert code == 1
    assert is_one_message(err, "train.epochs=3")


def test_demo_of_unknown_layers(command, tmp_path, is_one_message):
    code, text, err = command("demo", "--out", tmp_path / "demo", "--layers", "softmax,gcp")
    assert (code, text) == (1, "")
    assert is_one_message(err, "digits/gcp", "digits/cgp")
    assert not (tmp_path / "demo").exists()


def test_presets_show_the_epochs_of_both_phases(command):
    code, text, _ = command("presets")
    assert code == 0
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    cells = {name: [cell.strip() for cell in row.split("│")[1:-1]] for name, row in rows.items()}
    assert cells["cgp/cifar10"][-3:] == ["cgp", "all", "200 + 400"]
    assert cells["cgp/cifar10-softmax"][-1] == "600"
    assert cells[KEP][-3:-1] == ["kep-svgp", "last 1"]
    assert "warm_start.epochs" in text


def test_presets_are_listed_in_full_however_narrow(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, text, _ = command("presets")
    assert code == 0
    assert [name for name in presets.PRESETS if not occurrences(name, text)] == []
    assert "…" not in text
