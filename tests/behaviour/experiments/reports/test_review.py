"""The page of `probattn review`: what it holds, its counts, its size, and the list it lets one
download."""

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
from probattn.experiments.data.tables import table_dataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.reporting import review
from probattn.inference import Prediction

SCRIPT = Path(review.__file__).parent / "templates" / "review.js"
CLASSES = ("ham", "spam", "</script><b>other</b>")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script> <img src=x onerror=alert(1)>",
    'She said "no", and\nleft; \u2028 \U0001f600 \u202e',
    "=1+1",
)
DIVISION = {"shares": {"valid": 0.2, "test": 0.3}, "seed": 0, "limit": None}
VALID = random_prediction(300, 3, seed=1)
SURE = random_prediction(300, 3, seed=1, labels=VALID.predicted)


def page_of(prediction, data, *, classes=CLASSES, calibration=None, **settings):
    options = {"name": "run", "classes": classes, "calibration": calibration}
    return review.page(prediction, data, settings=settings, **options)


def texts_page(texts, **options):
    prediction = random_prediction(len(texts), 3)
    return page_of(prediction, Texts(tuple(texts), prediction.labels), **options)


def held(page, name):
    """Return what a script element of a page holds as JSON, as a browser reads it."""
    element = re.search(rf'<script type="application/json" id="{name}">(.*?)</script', page, re.S)
    return json.loads(element[1])


def run_node(function, *values):
    """Return what a function of the page's script returns for values of JSON."""
    if shutil.which("node") is None:
        pytest.skip("no node to run JavaScript with")
    written = ", ".join(map(json.dumps, values))
    program = f"const page = require({json.dumps(str(SCRIPT))});"
    program += f"process.stdout.write(JSON.stringify(({function})({written})))"
    done = subprocess.run(["node", "-"], input=program.encode(), capture_output=True, check=True)
    return json.loads(done.stdout)


def download(page, notes, folder):
    """Write the downloaded list, with notes by the number of the example, as all three parts."""
    about = held(page, "about")
    function = "(columns, label, rows, notes) => page.csv(columns, label, rows, new Map(notes))"
    values = about["columns"], about["label"], held(page, "data"), list(notes.items())
    text = run_node(function, *values)
    for part in ("train", "valid", "test"):
        (folder / f"{part}.csv").write_text(text, "utf-8", newline="")


def test_html_in_a_text_or_a_name_stays_text():
    page = texts_page(HOSTILE)
    plain = texts_page("abcd", classes=tuple("abc"))
    for mark in ("<script", "</script", "<img", "<b>", "<!--"):
        assert page.count(mark) == plain.count(mark)
    assert {example["cells"][0] for example in held(page, "data")} == set(HOSTILE)
    assert not re.search(r"""(src|href)=["']|https?:|@import|url\(""", plain)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|\.write\(", SCRIPT.read_text())


@pytest.mark.parametrize("max_risk", [0.4, 1e-4])  # the latter accepts no answer
def test_answers_are_those_of_the_calibration_the_least_certain_first(max_risk):
    calibration = Calibration.fit(SURE, weights="", num_samples=1, seed=0, max_risk=max_risk)
    page = texts_page(["t"] * 30, calibration=calibration)
    probs = calibration.apply(random_prediction(30, 3)).probs.double()
    examples = held(page, "data")
    order = [example["number"] for example in examples]
    confidence, predicted = probs[order].max(1)
    assert confidence.tolist() == sorted(confidence.tolist())
    assert [CLASSES.index(example["predicted"]) for example in examples] == predicted.tolist()
    assert [example["size"] for example in examples] == calibration.sets(probs[order]).sum(
        1
    ).tolist()
    start = int(re.search(r'type="range"[^>]* value="(\d+)"', page)[1])
    accepted = int(calibration.accepts(probs).sum())
    assert held(page, "about")["steps"][start]["answered"] == accepted


def test_an_example_whose_answer_is_outside_of_its_own_set_says_so_with_a_reason():
    calibration = Calibration.fit(SURE, weights="", num_samples=1, seed=0, level=0.5)
    page = texts_page(["t"] * 200, calibration=calibration)
    examples = held(page, "data")
    assert {example["size"] == 0 for example in examples} == {True, False}
    for example in examples:
        assert ("empty set" in example["kinds"]) == (example["size"] == 0)
        assert ("empty set" in example["notes"]) == (example["size"] == 0)
    assert held(page, "about")["kinds"] == ["empty set"]
    text = re.sub("<.*?>", "", page)
    assert "Empty set: " in text
    assert "50\u00a0%" in text
    whole = texts_page(["t"] * 200)
    assert "Empty set: " not in re.sub("<.*?>", "", whole)


@pytest.mark.parametrize("number", [1, 7, 1000])
def test_steps_count_answers_and_errors_with_exact_intervals(number):
    generator = np.random.default_rng()
    confidence = generator.uniform(0.3, 1, number).round(2)  # with ties
    is_wrong = generator.uniform(size=number) > confidence
    *steps, last = review.slider_steps(confidence, is_wrong)
    assert last["threshold"] is None
    assert steps[0]["answered"] == number
    for step in steps:
        n = int((confidence >= step["threshold"]).sum())
        wrong = int(is_wrong[confidence >= step["threshold"]].sum())
        # Clopper & Pearson: quantiles of beta distributions, 0 and 1 at the ends.
        low = beta.ppf(0.025, wrong, n - wrong + 1) if wrong else 0.0
        high = beta.ppf(0.975, wrong + 1, n - wrong) if wrong < n else 1.0
        assert (step["answered"], step["wrong"]) == (n, wrong)
        assert (step["low"], step["high"]) == pytest.approx((low, high), abs=1e-9)


def test_pages_of_5000_images_hold_all_in_5_megabytes():
    noise = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8)  # compresses worst
    prediction = random_prediction(5000, 3)
    page = page_of(prediction, Images(noise, prediction.labels))
    assert len(page.encode()) < 5_000_000
    assert len(held(page, "data")) == 5000


@pytest.mark.parametrize("texts", [["x"] * 5001, ["\u4e00" * 400] * 3000, ["x" * 400_000, "short"]])
def test_the_most_certain_are_left_out_of_what_is_too_much_and_it_is_said(texts):
    page = texts_page(texts)
    examples = held(page, "data")
    assert len(page.encode()) < 5_000_000
    assert 0 < len(examples) < len(texts)
    assert f"{len(examples)} of {len(texts)} test examples" in page
    assert held(page, "about")["steps"][0]["answered"] == len(texts)
    if len(texts) > 2:
        order = random_prediction(len(texts), 3).confidence.argsort(stable=True).tolist()
        assert [example["number"] for example in examples] == order[: len(examples)]


def test_labels_of_rows_are_read_back_by_the_reader_of_train(tmp_path):
    """Here numbers, which come by their standard deviation, without a slider."""
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=["a", "b, c", "y"])
    rows["city"] = ["Bern", 'a "b"', "x,y"] * 20
    rows.to_csv(tmp_path / "rows.csv", index=False)
    options = {"label_column": "y", "task": "regression", **DIVISION}
    test = table_dataset.read(tmp_path / "rows.csv", **options).test
    variance = torch.arange(1.0, len(test) + 1)[:, None]
    law = torch.distributions.Normal(torch.zeros_like(variance)[None], variance.sqrt()[None])
    law = torch.distributions.Independent(law, 1)
    prediction = Prediction(
        mean=0 * variance, variance=variance, labels=test.labels, components=(law,)
    )
    page = page_of(prediction, test, classes=(), **{"data.label_column": "y"})
    assert 'type="range"' not in page
    numbers = [example["number"] for example in held(page, "data")]
    assert numbers == list(range(len(test)))[::-1]
    download(page, {number: f"{number}.5" for number in numbers}, tmp_path)
    (tmp_path / "rows.csv").unlink()
    again = table_dataset.read(tmp_path, **options).train
    assert again.labels.flatten().tolist() == [number + 0.5 for number in numbers]
    read = table_dataset.read(tmp_path, **options).test.cells.drop(columns="y")
    assert (read.to_numpy() == test.cells.drop(columns="y").to_numpy()[::-1]).all()


def test_labels_of_images_name_their_files(tmp_path):
    for number in range(20):
        folder = tmp_path / ("cat", "dog")[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(folder / f"{number}.png")
    classes, *_, test = own_images.read(tmp_path, image_size=8, **DIVISION)
    prediction = random_prediction(len(test), 2, labels=test.labels)
    for example in held(page_of(prediction, test, classes=classes), "data"):
        red = int(test.images[example["number"], 0, 0, 0])
        assert Path(example["cells"][0]).stem == str(red // 10)


def test_the_command_writes_the_page_of_an_evaluated_run(evaluated, command, succeed, tmp_path):
    run = shutil.copytree(evaluated["digits/kep-svgp"], tmp_path / "run")
    succeed("review", run)
    page = (run / review.FILE).read_text("utf-8")
    for _ in range(2):  # the second writes over an earlier page
        succeed("review", run, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page
    accuracy = pd.read_csv(run / "scores.csv").query("set == 'test'").accuracy.iloc[0]
    everything = held(page, "about")["steps"][0]
    assert 1 - everything["wrong"] / everything["answered"] == pytest.approx(accuracy)
    (run / "evaluation.json").unlink()
    code, _, error = command("review", run)
    assert code == 1
    assert "probattn evaluate" in error


@pytest.mark.parametrize("is_stochastic", [True, False])
def test_the_mutual_information_of_a_network_without_latent_variables_is_left_out(is_stochastic):
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    expected = torch.special.entr(probs).sum(-1) - (0.1 if is_stochastic else 1e-7)
    test = Prediction(probs=probs, expected_entropy=expected, labels=torch.tensor([0, 1]))
    data = Images(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), test.labels)
    html = review.page(test, data, name="run", classes=("a", "b"), calibration=None, settings={})
    assert ("mutual information</option>" in html) == is_stochastic
    assert ("mutual_information" in held(html, "data")[0]) == is_stochastic
