"""Outputs at a place of the user's choice go over nothing else, and are whole or not there."""

import csv
import os
import shutil

import pandas as pd
import pytest
from full_disk import full_after

from probattn.experiments.displayable import csv_text
from probattn.experiments.sharing.pipeline import Pipeline

KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
MINE = "input,label\nmy only copy,3\n"


@pytest.fixture
def home(tmp_path, evaluated, photos, monkeypatch):
    """The working folder: a run, a shared folder, an encoder of others, two images and files of the
    user's own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(evaluated[KEP], "run")
    Pipeline.from_pretrained("run").save_pretrained("shared")
    os.mkdir("encoder")
    for name in (
        "config.json",
        "model.safetensors",
        "mine.csv",
        "mine.pt2",
        "encoder/model.safetensors",
    ):
        (tmp_path / name.replace("config", "encoder/config")).write_text(MINE)
    (photos / "broken.jpg").unlink()
    os.symlink("photos/wide.png", "link.png")
    os.link("photos/wide.png", "hard.png")
    os.symlink("run", "linked-run")
    os.symlink("mine.csv", "link.csv")
    os.symlink("loop", "loop")
    os.mkfifo("fifo")
    return tmp_path


REFUSED = {
    "an input": ["photos/wide.png", "./photos/more/../wide.png", "link.png", "hard.png"],
    "in a folder of inputs": ["photos/new.csv", "photos/more/deep/new.csv"],
    "in a run": [
        "run/settings.json",
        "run/best.pt",
        "run/new.csv",
        "run/predictions/a/b.csv",
        "linked-run/new.csv",
    ],
    "in a shared folder": ["shared/config.json", "shared/model.safetensors", "shared/new/a.csv"],
    "in a model of others": ["encoder/new.csv", "encoder/config.json"],
    "another file": ["mine.csv", "link.csv", "mine.pt2"],
    "no file": ["fifo", "/dev/null", "loop/x.csv"],
}
COMMANDS = {
    ("predict", "run", "photos"): REFUSED,
    ("export", "run", "--num-samples", 0): {
        "a program": ["mine.pt2", "run/a.pt2", "shared/a.pt2", "encoder/a.pt2"]
    },
    ("bench", "layers", "--rounds", 1): {
        "figures": ["mine.csv", "run/new.csv", "encoder/config.json", "/dev/null"]
    },
}


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [(arguments, kind) for arguments, kinds in COMMANDS.items() for kind in kinds],
)
def test_no_command_goes_over_anything_else(command, home, contents, arguments, kind):
    before = contents(home)
    for out in COMMANDS[arguments][kind]:
        code, text, err = command(*arguments, "--out", out)
        assert (code in (1, 2), text, "error: " in err) == (True, "", True), (out, err)
        assert contents(home) == before, out
    assert os.path.islink("link.csv")


def test_a_table_of_rows_and_its_labels_stay(refused, succeed, home, train_table, contents):
    run = train_table("data.label_column=price", "data.task=regression")
    table = shutil.copy(run.parent / "table.csv", home / "table.csv")
    before = contents(home)
    assert "table.csv is an input" in refused("predict", run, table, "--out", "table.csv")
    assert contents(home) == before
    succeed("predict", run, table, "--out", "answers.csv")
    assert len(pd.read_csv("answers.csv")) == 60


def test_earlier_answers_are_replaced_only_by_those_to_inputs_that_could_all_be_read(
    refused, succeed, home
):
    succeed("predict", "run", "photos/wide.png", "--out", "new/answers.csv")
    first = (home / "new" / "answers.csv").read_text()
    for inputs in (["photos", "photos/typo.png"], ["typo"]):
        err = refused("predict", "run", *inputs, "--out", "new/answers.csv")
        assert "new/answers.csv was not written" in err
        assert (home / "new" / "answers.csv").read_text() == first
    succeed("predict", "run", "photos", "--out", "new/answers.csv")
    assert len(pd.read_csv("new/answers.csv")) == 2
    (home / "empty.csv").touch()
    os.symlink("new/answers.csv", "answers.csv")
    for out in ("empty.csv", "answers.csv"):
        succeed("predict", "run", "photos/wide.png", "--out", out)
    assert os.path.islink("answers.csv")
    assert (home / "new" / "answers.csv").read_text() == (home / "empty.csv").read_text() == first


@pytest.mark.parametrize("inputs", [["typo"], ["typo.csv", "typo.png"], []])
def test_nothing_is_written_if_no_input_was_read(refused, home, inputs):
    refused("predict", "run", *inputs, "--out", "new/folder/answers.csv")
    assert not (home / "new").exists()


def test_on_a_full_disk_earlier_answers_and_models_stay_whole(command, succeed, home, contents):
    outputs = {
        "predict": ["photos", "--out", "answers.csv"],
        "export": ["--out", "exported"],
        "compare": ["--out", "compared"],
    }
    for verb, arguments in outputs.items():
        for _ in range(2):  # without earlier outputs, and over them
            before = contents(home)
            with full_after(300):
                code, _, err = command(verb, "run", *arguments)
            assert (code, arguments[-1] in err) == (1, True), (verb, err)
            assert contents(home) == before
            succeed(verb, "run", *arguments)
    assert Pipeline.from_pretrained("exported").calibration is not None


def test_a_model_goes_over_no_other(command, succeed, home, contents, evaluated):
    shutil.copytree(evaluated[SOFTMAX], "other")
    before = contents(home)
    for out in (
        "run",
        "run/shared",
        "encoder",
        "encoder/x",
        "shared/x",
        "linked-run",
        "other",
        "mine.csv",
        "photos/x",
    ):
        code, text, err = command("export", "run", "--out", out)
        if out == "photos/x":  # a folder of something else, of which nothing is touched
            assert code == 0, err
            shutil.rmtree(out)
        else:
            assert (code, text) == (1, ""), out
        assert contents(home) == before, out
    for run, out in (("shared", "shared"), ("other", "shared"), ("shared", "shared/new")):
        assert command("export", run, "--out", out)[0] == 1
        assert contents(home) == before
    (home / "shared" / "README.md").write_text("mine")
    succeed("export", "run", "--out", "shared")
    assert (home / "shared" / "README.md").read_text() == "mine"


def test_a_model_that_was_trained_further_predicts_uncalibrated_and_says_so(
    command, succeed, home, caplog
):
    assert "NLL" in (home / "shared" / "README.md").read_text()
    succeed("train", "--out", "run", "--resume", "--epochs", 12)
    code, out, _ = command("predict", "run", "photos")
    assert (code, "uncalibrated" in caplog.text, "set:" in out) == (0, True, False)
    for place in ("shared", "new"):  # over the calibrated one, too
        succeed("export", "run", "--out", place)
        assert Pipeline.from_pretrained(place).calibration is None
    assert "NLL" not in (home / "new" / "README.md").read_text()
    succeed("evaluate", "run")
    assert Pipeline.from_pretrained("run").calibration is not None


def test_a_comparison_goes_over_no_other_file(refused, succeed, home, contents):
    succeed("compare", "run", "--out", "compared")
    for name in ("results.csv", "comparison.md", "comparison.tex", "differences.svg"):
        (home / f"of-{name}").mkdir()
        (home / f"of-{name}" / name).write_text("mine")
    before = contents(home)
    for out in ("run", "shared", "run/x", *(path.name for path in home.glob("of-*"))):
        refused("compare", "run", "--out", out)
        assert contents(home) == before
    assert "is an input" in refused("compare", "compared/results.csv", "--out", "compared")
    assert contents(home) == before
    pd.DataFrame({"other": [1]}).to_csv("other.csv", index=False)
    for paths in (["run"], ["other.csv"], ["run"]):
        succeed("compare", *paths, "--out", "compared")
    succeed("compare", "run", "--out", ".")  # beside the run


FORMULAS = [
    '=HYPERLINK("x")',
    "+1+1",
    "-2+3",
    "@SUM(1)",
    " =1",
    "\uff1d1",
    "\t=1",
    "=",
    "-cmd|' /C calc'!A0",
]
PLAIN = ["-1", "+2.5", "1e5", "a=b", "cat", "naïve", "", "#3", "-.5"]


def test_texts_of_a_table_are_no_formulas_and_obey_no_terminal():
    table = pd.DataFrame(
        {"a": [*FORMULAS, *PLAIN], "=b": -1.5, "c": ["\x1b[31mred\x07", "\u202e"] * 9}, dtype=object
    )
    rows = list(csv.DictReader(csv_text(table.astype({"=b": float})).splitlines()))
    assert [row["a"] for row in rows][len(FORMULAS) :] == PLAIN
    assert all(row["a"][0] == "'" or row["a"].startswith("\\t") for row in rows[: len(FORMULAS)])
    assert {(row["'=b"], row["c"]) for row in rows} == {
        ("-1.5", r"\x1b[31mred\x07"),
        ("-1.5", r"\u202e"),
    }
    again = csv_text(pd.DataFrame(rows))
    assert again == csv_text(pd.DataFrame(csv.DictReader(again.splitlines())))
