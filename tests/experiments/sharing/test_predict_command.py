"""``probattn predict``: answers to images and texts, and what could not be read."""

import csv
import functools
import json

import pytest

from probattn.experiments.sharing.pipeline import Pipeline

KEP = "digits/kep-svgp"


@pytest.fixture
def predict(command):
    """Runs `probattn predict`: exit code, stdout, stderr."""
    return functools.partial(command, "predict")


def test_images_are_answered_and_what_is_none_is_named(predict, evaluated, photos):
    code, out, err = predict(evaluated[KEP], photos, photos / "missing.png", "--format", "jsonl")
    lines = {line["input"]: line for line in map(json.loads, out.splitlines())}
    assert code == 1
    assert sorted(lines) == sorted(
        str(photos / name) for name in ("wide.png", "more/fits.png", "broken.jpg", "missing.png")
    )
    answer = lines[str(photos / "more" / "fits.png")]
    assert answer["confidence"] == max(answer["probs"].values()) == answer["probs"][answer["predicted"]]
    assert answer["entropy"] >= answer["mutual_information"] >= 0
    quantile = Pipeline.from_run(evaluated[KEP]).evaluation.threshold
    assert set(answer["set"]) == {name for name, prob in answer["probs"].items() if 1 - prob <= quantile}
    assert "error" in lines[str(photos / "broken.jpg")]
    assert err.startswith("error: 2 of 4 inputs could not be read\n")
    assert "missing.png" in err


def test_a_table_fits_80_columns_and_says_what_is_what(predict, evaluated, photos, monkeypatch):
    monkeypatch.chdir(photos)
    code, out, err = predict(evaluated[KEP], "wide.png", "--num-samples", 3)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 90
    for words in ("wide.png", "mutual information", "the 3 samples", "90 %", "calibrated with 10 samples"):
        assert words in out


def test_the_table_has_the_verdict_on_the_posterior(predict, evaluated, photos):
    """Two epochs of training are too few; a small mutual information says nothing about new kinds of inputs."""
    code, out, _ = predict(evaluated[KEP], photos / "wide.png")
    (verdict,) = set(Pipeline.from_run(evaluated[KEP]).evaluation.states.values())
    assert code == 0
    assert verdict == "not converged"
    assert f"1 of 1 sites {verdict}" in out
    assert "does not know" not in out


def test_a_run_that_was_not_evaluated_says_how_to_get_verdict_and_prediction_sets(predict, trained, photos):
    code, out, _ = predict(trained[KEP], photos / "wide.png")
    assert code == 0
    assert "no verdict; `probattn evaluate RUN`" in out
    assert "no prediction sets: `probattn evaluate RUN`" in out


def test_a_shared_folder_answers_as_the_run(predict, evaluated, photos, tmp_path):
    Pipeline.from_run(evaluated[KEP]).save_pretrained(tmp_path / "shared")
    both = [predict(each, photos / "wide.png", "--format", "jsonl") for each in (evaluated[KEP], tmp_path / "shared")]
    assert both[0] == both[1]
    assert both[0][0] == 0


def test_texts_come_from_options_lines_tables_and_json_lines(predict, text_run, tmp_path):
    (tmp_path / "a.txt").write_text("a good film\n\na bad film\n")
    (tmp_path / "a.csv").write_text('id,review\n1,"a good\nfilm"\n2,bad\n')
    (tmp_path / "a.jsonl").write_text('{"review": "good"}\n{"review": "bad"}\n')
    files = [tmp_path / name for name in ("a.txt", "a.csv", "a.jsonl")]
    out = tmp_path / "answers.csv"
    code, _, err = predict(text_run, *files, "--text", "good", "--column", "review", "--out", out)
    with out.open(newline="") as file:
        rows = {row["input"]: row for row in csv.DictReader(file)}
    assert code == 1
    assert err.startswith("error: 1 of 8 inputs could not be read")
    expected = ["text 1", *(f"{files[0]}:{line}" for line in (1, 2, 3)), *(f"{files[1]}:{line}" for line in (2, 4))]
    assert list(rows) == sorted([*expected, *(f"{files[2]}:{line}" for line in (1, 2))], key=list(rows).index)
    assert rows[f"{files[0]}:2"]["error"] == "there is no text"
    assert rows["text 1"]["predicted"] in ("negative", "positive")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "id,review\n1,x\n", "there is no column 'text'; name one with --column, there are 'id', 'review'"),
        ("a.jsonl", "no json\n", "a.jsonl:1: this line is no JSON"),
        ("a.jsonl", '{"label": 1}\n', "a.jsonl:1: there is no column 'text'"),
        ("a.txt", b"\xff", "is not UTF-8"),
    ],
)
def test_files_of_texts_that_cannot_be_read_are_one_sentence(predict, text_run, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = predict(text_run, tmp_path / name)
    assert (code, out) == (1, "")
    assert words in err


def test_nothing_to_predict_a_text_for_images_and_no_model_are_one_message(
    predict, trained, text_run, tmp_path, is_one_message
):
    for arguments, words in (
        ((trained[KEP],), "there is nothing to predict"),
        ((trained[KEP], "--text", "x"), "this model takes images"),
        ((text_run, "photo.png"), "this model takes texts, and photo.png is an image"),
        ((tmp_path, "x.png"), "holds no run"),
    ):
        code, _, err = predict(*arguments)
        assert code == 1
        assert is_one_message(err, words)
