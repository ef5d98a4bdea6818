"""`probattn compare` and `probattn study`."""

from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
RESULTS = Path(__file__).parents[3] / "experiments" / "results"


def accuracy(frame, run):
    chosen = frame[(frame["run"] == run) & (frame["method"] == "posterior") & (frame["set"] == "test")]
    return 100 * chosen["accuracy"].mean()


def test_compare_prints_and_writes_tables_and_a_figure_of_folders_and_of_results(command, evaluated, tmp_path):
    out = tmp_path / "compared"
    code, text, err = command("compare", evaluated[SOFTMAX], evaluated[KEP].parent, "--out", out)
    assert (code, err) == (0, "")
    frame = pd.read_csv(out / "results.csv")
    difference = accuracy(frame, KEP) - accuracy(frame, SOFTMAX)
    for words in ("Test data", "Corrupted test images", "Detection of letters, AUROC", KEP, SOFTMAX, "resamples"):
        assert words in text
    assert {path.name for path in out.iterdir()} == {
        "results.csv", "comparison.md", "comparison.tex", "differences.svg"}  # fmt: skip
    assert "# Detection of letters, AUROC" in (out / "comparison.md").read_text()
    ElementTree.parse(out / "differences.svg")
    code, text, err = command("compare", out / "results.csv", "--out", tmp_path / "again")
    assert (code, err) == (0, "")
    assert f"{difference:+z.2f}" in text
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "again" / "results.csv"), frame)


def test_compare_of_a_run_that_was_not_evaluated(command, kep, tmp_path, is_one_message):
    code, text, err = command("compare", kep, "--out", tmp_path / "out")
    assert (code, text) == (1, "")
    assert is_one_message(err, "was not evaluated", "probattn evaluate")
    assert not (tmp_path / "out").exists()


def test_a_study_trains_evaluates_and_compares_with_ensembles(command, tmp_path, assignments, tiny):
    options = assignments([*tiny, "data.limit=60", "train.num_samples=2"])
    options += ["--method", "none", "--ood", "none", "--no-shift", "--workers", 1, "--epochs", 2, "--seeds", 2]
    code, text, err = command("study", "digits/softmax", "digits/kep-svgp", "--out", tmp_path / "study", *options)
    assert (code, err) == (0, "")
    assert "Test data" in text
    frame = pd.read_csv(tmp_path / "study" / "results.csv")
    assert set(frame["method"]) == {"posterior", "ensemble of 2"}
    assert frame["run"].nunique() == 2
    assert len({*(tmp_path / "study").rglob("best.pt")}) == 2 * 2
    assert "ensembles" in (tmp_path / "study" / "comparison.md").read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("*.csv")))
def test_every_committed_file_of_results_is_printed_as_a_table(command, tmp_path, name):
    code, text, err = command("compare", RESULTS / name, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert max(map(len, text.splitlines())) > 40
    assert "| --- |" in (tmp_path / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits/softmax", "--method", "laplac"], ["laplac", "did you mean laplace"]),
        (["digits/softmx"], ["digits/softmax"]),
        (["tabular/csv"], ["--data"]),
        (["digits/softmax", "--layers", "softmax,nowhere:Layer"], ["nowhere"]),
        (["digits/softmax", "--layers", "softmax,nowhere"], ["nowhere"]),
        (["text/csv", "--data", "nothing.csv"], ["nothing.csv"]),
        (["digits/softmax", "--data", "nowhere"], ["nowhere", "--data"]),
    ],
)
def test_wrong_arguments_of_study_are_one_message_before_anything_is_trained(
    command, tmp_path, monkeypatch, is_one_message, arguments, words
):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("study", *arguments, "--out", tmp_path / "study", "--seeds", 1)
    assert code == 1
    assert is_one_message(err, *words)
    assert not (tmp_path / "study").exists()
