"""Notes of the command on a user's data: in training, in evaluation and its report, and with each
answer."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from own_files import WORDS

CHANGES = ("network.dim=16", "network.depth=1", "network.heads=1", "network.mlp_dim=8")
CHANGES += ("layer.rank=1", "train.num_samples=2", "train.warmup_epochs=0")
SMALL = [part for change in CHANGES for part in ("--set", change)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of which the test part is a copy of training rows with random labels."""
    generator = np.random.default_rng(0)
    size = generator.uniform(0, 10, 90).round(3)
    frame = pd.DataFrame({"size": size, "colour": generator.choice(["red", "blue"], 90)})
    frame["flag"], frame["when"] = (
        generator.choice(["True", "False"], 90),
        pd.date_range("2024-01-01", periods=90),
    )
    frame["label"] = np.where(size > 5, "big", "small")
    folder = tmp_path_factory.mktemp("table")
    frame[:60].to_csv(folder / "train.csv", index=False)
    frame[60:].to_csv(folder / "valid.csv", index=False)
    frame[:30].assign(label=generator.permutation(frame.label[:30])).to_csv(
        folder / "test.csv", index=False
    )
    return folder


@pytest.fixture
def trained(succeed, table, tmp_path):
    """Words of the training, and a copy of its run."""
    said, run = table / "said.txt", table / "run"
    if not said.exists():
        options = ("--out", run, "--epochs", "4", *SMALL)
        said.write_text(succeed("train", "tabular/csv", "--data", table, *options))
    return said.read_text(), shutil.copytree(run, tmp_path / "run")


@pytest.mark.filterwarnings("ignore::probattn.inference.prediction.predictor.FewExamplesWarning")
def test_copies_are_said_in_training_in_evaluation_and_at_the_top_of_the_report(succeed, trained):
    out, run = trained
    assert [
        word
        for word in ("60", "big", "small", "colour", "date", "30 of 30 test")
        if word not in out
    ] == []
    kept = "\n".join(json.loads((run / "settings.json").read_text())["summary"])
    assert kept in out
    out = succeed("evaluate", run)
    report = (run / "report.html").read_text("utf-8")
    for text in (out, report):
        assert "30 of 30 test" in text
        assert "can be trusted (" not in text
    assert report.index("30 of 30 test") < report.index(">Results<")


@pytest.mark.filterwarnings("ignore::probattn.inference.prediction.predictor.FewExamplesWarning")
def test_decisions_that_have_too_few_validation_examples_say_so_wherever_they_are_shown(
    succeed, trained, table, tmp_path
):
    """Sets by class at 95 % take 19 validation rows of each class, and abstention 59; there are 30
    rows in all."""
    run = trained[1]
    counts = pd.read_csv(table / "valid.csv")["label"].value_counts()
    evaluated = succeed("evaluate", run, "--level", "0.95")
    predicted = succeed("predict", run, table / "test.csv")
    exported = succeed("export", run, "--out", tmp_path / "program.pt2")
    succeed("export", run, "--out", tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text("utf-8")
    report = (run / "report.html").read_text("utf-8")
    for text in (evaluated, predicted, exported, card, report):
        words = " ".join(text.split())
        assert [name for name, count in counts.items() if (f"{name} ({count})" in words)] == [
            name for name, count in counts.items() if count < 19
        ]
        assert "at least 59 validation examples" in words
    assert "accepted 0" not in evaluated


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, None),
        ({"colour": "green"}, "colour"),
        ({"size": "1000"}, "size"),
    ],
)
def test_an_answer_says_what_training_has_not(command, trained, change, named, tmp_path):
    row = {"size": "5.0", "colour": "red", "flag": "True", "when": "2024-01-20"}
    pd.DataFrame([row, row | change]).to_csv(tmp_path / "new.csv", index=False)
    code, _, err = command(
        "predict", trained[1], tmp_path / "new.csv", "--out", tmp_path / "answers.csv"
    )
    assert (code, err) == (0, "")
    answers = pd.read_csv(tmp_path / "answers.csv", keep_default_na=False)
    notes = list(answers["notes"]) if "notes" in answers else ["", ""]
    assert "unlike" not in notes[0]
    assert [name for name in row if name in notes[1]] == ([named] if named else [])


def test_texts_that_are_cut_or_unknown_are_said_and_quotes_join_no_rows_of_a_prediction(
    succeed, tmp_path
):
    rows = [(" ".join(WORDS[n % 5 : 6 + n % 5]), ("neg", "pos")[n % 2]) for n in range(60)]
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(tmp_path / "a.csv", index=False)
    options = ["--epochs", "1", "--set", "network.max_length=8", *SMALL]
    out = succeed(
        "train", "text/csv", "--data", tmp_path / "a.csv", "--out", tmp_path / "run", *options
    )
    assert "pos" in out
    lines = [
        "text,label",
        "the cat,0",
        '"the cat,1',
        "a mat,0",
        'films",1',
        "你好吗,0",
        f"{' '.join(WORDS)},0",
    ]
    (tmp_path / "new.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    succeed("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "answers.csv")
    notes = pd.read_csv(tmp_path / "answers.csv", keep_default_na=False)["notes"].tolist()
    assert len(notes) == 6
    assert notes[0] == notes[2] == ""
    assert "unknown" in notes[4]
    assert "cut" in notes[5]


def test_an_emptied_log_leaves_the_number_of_epochs(command, succeed, trained):
    (trained[1] / "log.jsonl").write_text("")
    out = succeed("train", "--out", trained[1], "--resume", "--epochs", "5")
    assert "of 5," in out
    (trained[1] / "log.jsonl").write_text("")
    said = command("train", "--out", trained[1], "--resume")[1]
    best, done = map(int, re.search(r"best epoch (\d+) of (\d+)", said).groups())
    assert best <= done
