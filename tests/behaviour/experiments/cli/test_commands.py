"""Each command from beginning to end on tiny digits, as its user would type it; damaged runs."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from rich.console import Console

from probattn.experiments.cli import terminal
from probattn.experiments.config import presets
from probattn.experiments.config.settings import describe
from probattn.experiments.reporting import report
from probattn.experiments.studies import study
from probattn.models.layer_factories import LAYERS

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
RESULTS = Path(__file__).parents[4] / "experiments" / "results"


def accuracy(frame, run):
    chosen = frame[
        (frame["run"] == run) & (frame["method"] == "posterior") & (frame["set"] == "test")
    ]
    return 100 * chosen["accuracy"].mean()


def test_compare_writes_tables_and_a_figure_of_folders_and_of_its_own_results(
    command, evaluated, tmp_path
):
    out = tmp_path / "compared"
    code, text, err = command("compare", evaluated[SOFTMAX], evaluated[KEP].parent, "--out", out)
    assert (code, err) == (0, "")
    titles = ("Test data", "Corrupted test images", "Detection of letters", KEP, SOFTMAX)
    assert [title for title in titles if title not in text] == []
    assert "Detection of letters" in (out / "comparison.md").read_text()
    ElementTree.parse(out / "differences.svg")
    frame = pd.read_csv(out / "results.csv")
    code, text, err = command("compare", out / "results.csv", "--out", tmp_path / "again")
    assert (code, err) == (0, "")
    assert f"{accuracy(frame, KEP):.2f}" in text


@pytest.mark.parametrize(
    "name",
    [path.name for path in sorted(RESULTS.glob("*.csv")) if path.stat().st_size < 16_000],
)
def test_a_committed_file_of_results_is_printed_as_a_table(command, tmp_path, name):
    code, text, err = command("compare", RESULTS / name, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert max(map(len, text.splitlines())) > 40
    assert "| --- |" in (tmp_path / "comparison.md").read_text()


def test_the_demo_compares_layers_and_continues_where_it_stopped(
    command, refused, succeed, tmp_path, monkeypatch, tiny
):
    plan = study.plan
    monkeypatch.setattr(report, "figures", lambda result: {})
    monkeypatch.setattr(report, "save_figures", lambda *arguments: [])
    monkeypatch.setattr(
        study,
        "plan",
        lambda *names, changes, **rest: plan(*names, changes=[*changes, *tiny], **rest),
    )
    options = ["--layers", "softmax,kep-svgp", "--workers", "1", "--epochs", "3"]
    demo = ("demo", "--out", tmp_path / "demo", *options)
    text = succeed(*demo)
    titles = ["ACC", "MCC", "AURC", "AUROC", "FPR95", "ECE", "NLL", "Brier", "Corrupted", "minus"]
    of_posterior = f"{KEP}: "  # what its posterior contributes
    assert [title for title in (*titles, SOFTMAX, of_posterior) if title not in text] == []
    assert KEP in (tmp_path / "demo" / "report.html").read_text("utf-8")
    scored = pd.read_csv(tmp_path / "demo" / "results.csv")["method"]
    baselines = {"baseline/constant", "baseline/svm", "baseline/neighbours"}
    assert baselines <= set(scored)
    # Their examples, too, from which the intervals of the conclusion come.
    assert baselines <= set(pd.read_parquet(tmp_path / "demo" / "results.parquet")["method"])
    assert "Conclusion" in text
    last = tmp_path / "demo" / KEP / "seed-0" / "last.pt"
    weights = last.read_bytes()
    assert command(*demo)[:2] == (0, text)
    assert last.read_bytes() == weights
    assert "digits/cgp" in refused(*demo[:4], "softmax,gcp")


def test_all_presets_are_listed_however_narrow_the_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, text, err = command("presets")
    assert (code, err) == (0, "")
    assert [
        name for name in presets.PRESETS if not re.search(rf"(?<![\w/-]){name}(?![\w/-])", text)
    ] == []


@pytest.mark.parametrize("name", ["vit/folder", "digits/cgp", "text/hf", "tabular/csv"])
def test_the_listing_of_a_preset_fits_80_columns(command, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal, "console", Console(width=80))
    text = command("presets", name)[1]
    assert all(key in text for key in presets.preset(name).flat())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["vit/folder", "text/hf", "tabular/csv"])
def test_each_setting_has_a_meaning_of_its_own(name, layer):
    described = describe(presets.with_layer(presets.preset(name), layer))
    parts = [(key.partition(".")[0], meaning) for key, (meaning, _) in described.items()]
    assert all(meaning for _, meaning in parts)
    assert len(set(parts)) == len(parts)


def test_the_check_against_gpytorch_passes(command):
    code, text, _ = command("check-gp", "--seed", 3)
    assert (code, "agree" in text) == (0, True)


@pytest.mark.parametrize(
    ("verb", "name"), [("evaluate", "best.pt"), ("train", "last.pt"), ("train", "settings.json")]
)
def test_a_damaged_run_is_named_and_its_files_stay_as_they_are(refused, kep, contents, verb, name):
    whole = (kep / name).read_bytes()
    (kep / name).write_bytes(whole[: len(whole) // 2])
    before = contents(kep)
    err = refused(verb, *(["--out", kep, "--resume"] if verb == "train" else [kep]))
    assert [word for word in (str(kep), name) if word not in err] == []
    assert contents(kep) == before
