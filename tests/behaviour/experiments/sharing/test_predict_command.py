"""``probattn predict``: answers to images and texts, and what could not be read."""

import csv
import functools
import json
import os
import shutil

import pandas as pd
import pytest


@pytest.fixture
def predict(command):
    """Runs `probattn predict`: exit code, stdout, stderr."""
    return functools.partial(command, "predict")


def test_images_are_answered_and_what_is_none_is_named(predict, digits_run, photos, tmp_path):
    os.link(photos / "wide.png", os.fsencode(photos) + b"/\xff.png")  # a name that is not UTF-8
    (photos / "README.md").write_text("no image")
    (photos / "more" / "labels.json").write_text("{}")
    path = tmp_path / "new" / "answers.csv"
    code, _, err = predict(
        digits_run, photos, photos / "missing.png", "--out", path, "--sort", "entropy"
    )
    lines = pd.read_csv(path)
    assert code == 1
    names = ("wide.png", "more/fits.png", "\\xff.png", "broken.jpg", "missing.png")
    assert set(lines.input) == {str(photos / name) for name in names}
    answers = lines[lines.error.isna()]
    assert len(answers) == 3
    assert answers.entropy.is_monotonic_decreasing
    assert (answers.confidence == answers.filter(like="p(").max(axis=1)).all()
    assert err.startswith("error: 2 of 5 inputs could not be read\n")
    assert "missing.png" in err


def test_texts_come_from_options_lines_tables_and_json_lines(predict, text_run, tmp_path):
    (tmp_path / "a.txt").write_text("a good film\n\na bad film\n")
    (tmp_path / "a.csv").write_text('id,review\n1,"a good\nfilm"\n2,bad\n')
    (tmp_path / "a.jsonl").write_text('{"review": "good"}\n{"review": "bad"}\n')
    files = [tmp_path / name for name in ("a.txt", "a.csv", "a.jsonl")]
    out = tmp_path / "answers.csv"
    code, _, err = predict(text_run, *files, "--text", "good", "--column", "review", "--out", out)
    with out.open(newline="") as file:
        rows = {row["input"]: row for row in csv.DictReader(file)}
    assert (code, err) == (0, "")
    expected = {
        "text 1",
        *(f"{files[0]}:{line}" for line in (1, 3)),
        *(f"{files[1]}:{line}" for line in (2, 4)),
    }
    assert set(rows) == expected | {f"{files[2]}:{line}" for line in (1, 2)}
    assert float(rows["text 1"]["p(negative)"]) + float(
        rows["text 1"]["p(positive)"]
    ) == pytest.approx(1)


def test_files_of_texts_that_cannot_be_read_are_listed_with_the_reason(predict, text_run, tmp_path):
    (tmp_path / "good.csv").write_text("text\na good film\n")
    (tmp_path / "latin.csv").write_bytes(b"text\nfianc\xe9\n")
    (tmp_path / "uneven.csv").write_text("text,b\ngood,1\nbad\n")
    (tmp_path / "other.csv").write_text("review\ngood\n")
    bad = ("latin.csv", "uneven.csv", "other.csv", "missing.csv")
    out = tmp_path / "answers.csv"
    files = [tmp_path / name for name in ("good.csv", *bad)]
    code, _, err = predict(text_run, *files, "--out", out)
    assert code == 1
    answers = pd.read_csv(out)
    failed = answers[answers.error.notna()]
    assert len(answers) == len(failed) + 1
    for name in bad:
        assert name in err
        assert failed.input.str.contains(name).any()


def test_an_answer_outside_of_its_own_set_has_a_note_with_a_reason(
    predict, digits_run, photos, tmp_path
):
    run = shutil.copytree(digits_run, tmp_path / "run")
    content = json.loads((run / "calibration.json").read_text())
    (run / "calibration.json").write_text(json.dumps(content | {"quantile": 0.0}))
    inputs = [run, photos / "wide.png", photos / "more" / "fits.png"]
    out = tmp_path / "answers.csv"
    assert predict(*inputs, "--out", out)[0] == 0
    assert pd.read_csv(out).notes.tolist() == ["empty set"] * 2
    _, output, _ = predict(*inputs)
    assert output.count("empty set:") == 1
    assert "to a person" in " ".join(output.split())
