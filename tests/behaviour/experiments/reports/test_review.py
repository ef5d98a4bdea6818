"""The page of `probattn review`: what it holds, its counts, its size, and the list it lets one
download."""

import base64
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from evaluated_runs import random_prediction
from PIL import Image
from scipy.stats import beta

from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.own import images as own_images
from probattn.experiments.data.own.rows import read_texts
from probattn.experiments.data.tables import table_dataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.reporting import review

TEMPLATES = Path(review.__file__).parent / "templates"
CLASSES = ("ham", "spam", "</script><b>other</b>")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script> <img src=x onerror=alert(1)>",
    'She said "no", and\nleft; \u2028 \U0001f600 \u202e',
    "=1+1",
)
DIVISION = {"shares": {"valid": 0.2, "test": 0.3}, "seed": 0, "limit": None}


def held(page, name):
    """Return what a script element of a page holds as JSON, as a browser reads it."""
    element = re.search(rf'<script type="application/json" id="{name}">(.*?)</script', page, re.S)
    return json.loads(element[1])


def page_of(prediction, data, *, classes=CLASSES, calibration=None, settings=None):
    options = {"name": "run", "classes": classes, "calibration": calibration}
    return review.page(prediction, data, settings=settings or {}, **options)


def calibrated(max_risk=0.4):
    valid = random_prediction(300, 3, seed=1, labels=random_prediction(300, 3, seed=1).predicted)
    return Calibration.fit(valid, weights="", num_samples=1, seed=0, max_risk=max_risk)


def run_node(expression):
    """Return the value of an expression on the page's functions."""
    if shutil.which("node") is None:
        pytest.skip("no node to run JavaScript with")
    program = f"const page = require({json.dumps(str(TEMPLATES / 'review.js'))});"
    program += f"process.stdout.write(JSON.stringify({expression}))"
    done = subprocess.run(["node", "-"], input=program.encode(), capture_output=True, check=True)
    return json.loads(done.stdout)


def downloaded(page, notes):
    """Return the downloaded list with notes by the number of the example."""
    about, examples = held(page, "about"), held(page, "data")
    arguments = [about["columns"], about["label"], examples]
    written = ", ".join(map(json.dumps, arguments))
    return run_node(f"page.csv({written}, new Map({json.dumps(list(notes.items()))}))")


def test_html_in_a_text_or_a_name_stays_text():
    prediction = random_prediction(len(HOSTILE), 3)
    page = page_of(prediction, Texts(HOSTILE, prediction.labels), calibration=calibrated())
    plain = page_of(prediction, Texts(tuple("abcd"), prediction.labels), classes=tuple("abc"))
    for mark in ("<script", "</script", "<img", "<b>", "<!--"):
        assert page.count(mark) == plain.count(mark)
    examples = held(page, "data")
    assert {example["cells"][0] for example in examples} == set(HOSTILE)
    assert {example["true"] for example in examples} <= set(CLASSES)


def test_the_page_needs_nothing_else_and_writes_data_as_text_alone():
    prediction = random_prediction(9, 3)
    page = page_of(prediction, Texts(tuple("abcdefghi"), prediction.labels))
    assert not re.search(r"""(src|href)=["']|https?:|@import|url\(""", page)
    script = (TEMPLATES / "review.js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|fetch\(|eval\(", script
    )


def test_examples_come_from_the_least_to_the_most_certain_with_their_calibrated_answers():
    prediction, calibration = random_prediction(30, 3), calibrated()
    page = page_of(prediction, Texts(("t",) * 30, prediction.labels), calibration=calibration)
    examples = held(page, "data")
    confidence = [example["confidence"] for example in examples]
    assert confidence == sorted(confidence)
    probs = calibration.apply(prediction).probs.double()
    sets = calibration.sets(probs)
    for example in examples:
        number = example["number"]
        assert example["predicted"] == CLASSES[int(probs[number].argmax())]
        assert example["true"] == CLASSES[int(prediction.labels[number])]
        assert example["confidence"] == pytest.approx(float(probs[number].max()))
        members = {name for name, inside in zip(CLASSES, sets[number], strict=True) if inside}
        assert set(example["set"]) == members
        assert example["size"] == len(members)


@pytest.mark.parametrize("number", [1, 7, 1000])
@pytest.mark.parametrize("accepted", [0.5, float("inf")])
def test_steps_count_answers_and_errors_with_exact_intervals(number, accepted):
    generator = np.random.default_rng()
    confidence = generator.uniform(0.3, 1, number).round(2)  # with ties
    is_wrong = generator.uniform(size=number) > confidence
    *steps, last = review.slider_steps(confidence, is_wrong, accepted=accepted)
    assert last["threshold"] is None
    assert last["answered"] == 0
    assert steps[0]["answered"] == number or accepted < confidence.min()
    thresholds = [step["threshold"] for step in steps]
    assert thresholds == sorted(set(thresholds))
    assert (accepted in thresholds) == np.isfinite(accepted)
    for step in steps:
        n = sum(value >= step["threshold"] for value in confidence)
        wrong = sum(
            value >= step["threshold"] and bool(error)
            for value, error in zip(confidence, is_wrong, strict=True)
        )
        assert (step["answered"], step["wrong"]) == (n, wrong)
        if n == 0:
            continue
        # Clopper & Pearson: quantiles of beta distributions, 0 and 1 at the ends.
        low = beta.ppf(0.025, wrong, n - wrong + 1) if wrong else 0.0
        high = beta.ppf(0.975, wrong + 1, n - wrong) if wrong < n else 1.0
        assert (step["low"], step["high"]) == pytest.approx((low, high), abs=1e-9)


def test_the_slider_begins_at_the_threshold_of_evaluate():
    prediction = random_prediction(30, 3)
    data = Texts(("t",) * 30, prediction.labels)
    for calibration in (calibrated(), calibrated(max_risk=1e-4)):  # the latter accepts nothing
        page = page_of(prediction, data, calibration=calibration)
        start = int(re.search(r'type="range"[^>]* value="(\d+)"', page)[1])
        step = held(page, "about")["steps"][start]
        probs = calibration.apply(prediction).probs
        assert step["answered"] == int(calibration.accepts(probs).sum())


def test_pages_of_5000_images_hold_all_in_5_megabytes():
    noise = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8)  # compresses worst
    prediction = random_prediction(5000, 10)
    names = tuple(f"class {number}" for number in range(10))
    page = page_of(prediction, Images(noise, prediction.labels), classes=names)
    assert len(page.encode()) < 5_000_000
    examples = held(page, "data")
    assert len(examples) == 5000
    content = base64.b64decode(examples[0]["picture"].partition(",")[2])
    assert Image.open(io.BytesIO(content)).size[0] >= 16


def test_more_than_fits_is_left_out_from_the_most_certain_on_and_said():
    texts = ("x",) * 5001, ("\u4e00" * 400,) * 3000, ("x" * 400_000, "short")
    for content, kept in zip(texts, (5000, None, 1), strict=True):
        prediction = random_prediction(len(content), 3)
        page = page_of(prediction, Texts(content, prediction.labels))
        examples = held(page, "data")
        assert len(page.encode()) < 5_000_000
        assert len(examples) == (kept or len(examples)) < len(content)
        assert f"{len(examples)} of {len(content)} test examples" in page
        assert held(page, "about")["steps"][0]["answered"] == len(content)
        if kept != 1:
            order = prediction.confidence.double().argsort(stable=True).tolist()
            assert [example["number"] for example in examples] == order[: len(examples)]


def test_labels_of_texts_are_read_back_by_the_reader_of_train(tmp_path):
    texts = (*HOSTILE, *(f"text {number}" for number in range(8)))
    prediction = random_prediction(len(texts), 3)
    settings = {"data.text_column": "review", "data.label_column": "is, it"}
    page = page_of(prediction, Texts(texts, prediction.labels), settings=settings)
    notes = {number: ("yes", 'no "really"')[number % 2] for number in range(len(texts) - 2)}
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.csv").write_text(downloaded(page, notes), "utf-8", newline="")
    classes, train, *_ = read_texts(
        tmp_path, kind="csv", text_column="review", label_column="is, it", **DIVISION
    )
    read = {text: classes[label] for text, label in zip(train.texts, train.labels, strict=True)}
    assert read == {texts[number]: label for number, label in notes.items()}


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_labels_of_tables_are_read_back_by_the_reader_of_train(tmp_path, task):
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.normal(size=(60, 2)), columns=["a", "b, c"])
    rows["city"] = ["Bern", 'a "b"', "x,y"] * 20
    rows["target"] = generator.normal(size=60) if task == "regression" else ["u", "v"] * 30
    rows.to_csv(tmp_path / "rows.csv", index=False)
    options = {"label_column": "target", "task": task, **DIVISION}
    data = table_dataset.read(tmp_path / "rows.csv", **options)
    number = len(data.test)
    if task == "classes":
        prediction = random_prediction(number, 2, labels=data.test.labels)
        notes = {place: "uv"[place % 2] for place in range(number)}
    else:
        law = torch.distributions.Normal(torch.zeros(1, number, 1), torch.ones(1, number, 1))
        prediction = review.Prediction(
            mean=torch.zeros(number, 1),
            variance=torch.arange(number).reshape(-1, 1) + 1.0,
            labels=data.test.labels,
            components=(torch.distributions.Independent(law, 1),),
        )
        notes = {place: f"{place}.5" for place in range(number)}
    page = page_of(
        prediction, data.test, classes=data.classes, settings={"data.label_column": "target"}
    )
    assert ('type="range"' in page) == (task == "classes")
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.csv").write_text(downloaded(page, notes), "utf-8", newline="")
    (tmp_path / "rows.csv").unlink()
    again = table_dataset.read(tmp_path, **options)
    examples = held(page, "data")
    if task == "regression":
        deviations = [example["std"] for example in examples]
        assert deviations == sorted(deviations, reverse=True)
        values = again.train.labels.flatten().tolist()
    else:
        values = [again.classes[label] for label in again.train.labels]
    expected = [notes[example["number"]] for example in examples]
    assert list(map(str, values)) == expected
    given = data.test.cells.drop(columns="target").iloc[[row["number"] for row in examples]]
    assert again.test.cells.drop(columns="target").to_numpy().tolist() == given.to_numpy().tolist()


def test_labels_of_images_name_their_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        folder = tmp_path / ("cat", "dog")[number % 2]
        folder.mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    classes, *_, test = own_images.read(tmp_path, image_size=8, **DIVISION)
    prediction = random_prediction(len(test), 2, labels=test.labels)
    page = page_of(prediction, test, classes=classes)
    table = pd.read_csv(io.StringIO(downloaded(page, dict.fromkeys(range(len(test)), "bird"))))
    assert list(table.columns) == ["file", "label"]
    assert set(table["label"]) == {"bird"}
    for example, file in zip(held(page, "data"), table["file"], strict=True):
        expected = pixels[int(Path(file).stem)].transpose(2, 0, 1)
        assert (test.images[example["number"]].numpy() == expected).all()


def test_filters_pass_what_their_names_say():
    prediction = random_prediction(200, 3)
    page = page_of(prediction, Texts(("t",) * 200, prediction.labels), calibration=calibrated())
    steps, examples = held(page, "about")["steps"], held(page, "data")
    step = steps[len(steps) // 2]
    expected = {
        "predicted=ham": lambda row: row["predicted"] == "ham",
        "true=spam": lambda row: row["true"] == "spam",
        "error=wrong": lambda row: row["predicted"] != row["true"],
        "error=right": lambda row: row["predicted"] == row["true"],
        "size=1": lambda row: row["size"] == 1,
        "size=3": lambda row: row["size"] >= 3,
        "who=answered": lambda row: row["confidence"] >= step["threshold"],
        "who=person": lambda row: row["confidence"] < step["threshold"],
    }
    filters = [dict([name.split("=")]) for name in expected] + [{"true": "spam", "size": "1"}, {}]
    both = lambda row: row["true"] == "spam" and row["size"] == 1  # noqa: E731
    given = ", ".join(map(json.dumps, (examples, step)))
    call = f"(([e, s]) => {json.dumps(filters)}.map(f => page.chosen(e, f, s)))([{given}])"
    tests = [*expected.values(), both, lambda row: True]
    for chosen, is_in in zip(run_node(call), tests, strict=True):
        assert chosen == [example for example in examples if is_in(example)]


def test_the_counts_say_answers_errors_interval_and_the_rest():
    step = {"threshold": 0.5, "answered": 80, "wrong": 4, "low": 0.0138, "high": 0.1231}
    text = run_node(f"page.counts({json.dumps(step)}, 100)")
    numbers = ["80", "100", "80.0", "4", "5.0", "95", "1.4", "12.3", "20"]
    assert re.findall(r"\d+(?:\.\d+)?", text) == numbers
    none = run_node('page.counts({"threshold": null, "answered": 0, "wrong": 0}, 100)')
    assert re.findall(r"\d+(?:\.\d+)?", none) == ["0", "100", "0.0", "100"]


def test_the_command_writes_the_page_of_an_evaluated_run(evaluated, command, succeed, tmp_path):
    run = shutil.copytree(evaluated["digits/kep-svgp"], tmp_path / "run")
    succeed("review", run)
    first = (run / review.FILE).read_text("utf-8")
    out = tmp_path / "page.html"
    for _ in range(2):  # the second writes over an earlier page
        succeed("review", run, "--out", out)
    assert out.read_text("utf-8") == first
    accuracy = pd.read_csv(run / "scores.csv").query("set == 'test'").accuracy.iloc[0]
    everything = held(first, "about")["steps"][0]
    assert 1 - everything["wrong"] / everything["answered"] == pytest.approx(accuracy)
    (run / "evaluation.json").unlink()
    code, _, error = command("review", run)
    assert code == 1
    assert "probattn evaluate" in error
