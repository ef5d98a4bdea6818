"""Baselines outside the networks, on data whose best answers are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from probattn.experiments.config.presets import preset
from probattn.experiments.evaluation import evaluate as evaluation
from probattn.experiments.evaluation.baselines import (
    BASELINES,
    fit_baseline,
    rivals,
    suited,
)
from probattn.experiments.evaluation.convolutional import SmallCNN
from probattn.experiments.runs.sources import load_data
from probattn.experiments.runs.train import train
from probattn.inference import Prediction, metrics


def table_of(folder, rows):
    folder.mkdir()
    (folder / "data.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    return folder / "data.csv"


@pytest.fixture
def numbers(tmp_path):
    random = np.random.default_rng(np.random.randint(2**31))
    x = random.normal(size=(300, 2))
    noise = 0.1 * random.normal(size=300)
    rows = [("a", "b", "y"), *np.column_stack([x, 3 * (x[:, 0] > 0) + noise]).tolist()]
    settings = preset("tabular/csv").with_changes(
        [f"data.path={table_of(tmp_path / 'numbers', rows)}", "data.label_column=y"]
        + ["data.task=regression"]
    )
    return load_data(settings, None)


@pytest.fixture
def texts(tmp_path):
    random = np.random.default_rng(np.random.randint(2**31))
    rows = [("text", "label")]
    for number in range(200):
        words = random.choice(list("abcdefgh"), size=6).tolist()
        rows.append((" ".join([*words, ["good", "bad"][number % 2]]), ["yes", "no"][number % 2]))
    path = table_of(tmp_path / "texts", rows)
    return load_data(preset("text/csv").with_changes([f"data.path={path}"]), None)


def test_the_constant_of_numbers_is_the_mean_of_training_with_the_spread_of_validation(numbers):
    prediction = fit_baseline("constant", numbers)(numbers.test)
    mean = numbers.train.labels.double().mean()
    torch.testing.assert_close(prediction.mean, mean.expand(len(numbers.test), 1))
    spread = (numbers.valid.labels.double() - mean).square().mean()
    torch.testing.assert_close(prediction.variance, spread.expand(len(numbers.test), 1))


def test_trees_find_a_step_and_a_bag_of_words_a_word(numbers, texts):
    trees = fit_baseline("boosted-trees", numbers)(numbers.test)
    assert metrics.evaluate(trees)["rmse"] < 0.5 * float(numbers.test.labels.std())
    words = fit_baseline("tf-idf", texts)(texts.test)
    assert metrics.evaluate(words)["accuracy"] == 1


def test_the_candidate_with_the_least_validation_error_is_taken(numbers):
    """Its mean squared validation error is the variance of its predictions."""
    inputs = [part.features.numpy() for part in (numbers.train, numbers.valid)]
    labels = [part.labels.double().numpy().ravel() for part in (numbers.train, numbers.valid)]
    errors = []
    for model in BASELINES["boosted-trees"].candidates(numbers):
        predicted = model.fit(inputs[0], labels[0]).predict(inputs[1])
        errors.append(np.mean((predicted - labels[1]) ** 2))
    assert max(errors) > 1.01 * min(errors)
    prediction = fit_baseline("boosted-trees", numbers)(numbers.test)
    assert prediction.variance[0].item() == pytest.approx(min(errors), rel=1e-3)


def test_each_kind_of_data_has_its_baselines(numbers, texts):
    assert suited(numbers) == ["constant", "boosted-trees"]
    assert suited(texts) == ["constant", "tf-idf"]
    images = suited(load_data(preset("digits/softmax"), None))
    assert images == ["constant", "svm", "cnn", "neighbours"]


def test_a_baseline_is_chosen_and_calibrated_on_validation_data_alone(texts):
    """Other test labels change no prediction, and training labels do."""

    def probs(**parts):
        dataset = replace(texts, **parts)
        return fit_baseline("tf-idf", dataset)(dataset.test).probs

    test, train = (replace(part, labels=1 - part.labels) for part in (texts.test, texts.train))
    before = probs()
    assert torch.equal(before, probs(test=test))
    assert not torch.equal(before, probs(train=train))


def test_a_rival_is_compared_on_the_same_examples():
    labels = torch.arange(60) % 3
    right = torch.nn.functional.one_hot(labels, 3) * 2.0 + 0.3 * torch.randn(60, 3)
    good = Prediction(probs=right.softmax(-1), labels=labels)
    flat = Prediction(probs=torch.full((60, 3), 1 / 3), labels=labels)
    better, same = rivals(good, {"constant": flat, "svm": good})[::-1]
    assert better.network == pytest.approx(metrics.nll(good.probs, labels))
    assert better.baseline == pytest.approx(np.log(3), rel=1e-6)
    assert better.low <= better.network - better.baseline <= better.high < 0
    assert same.low == same.high == 0


def test_an_evaluation_scores_them_beside_the_network_and_fits_them_once(tmp_path, monkeypatch):
    settings = preset("digits/softmax").with_changes(["data.limit=100"], epochs=1)
    train(settings, tmp_path / "run", name="digits/softmax", progress=False)
    done = evaluation.evaluate(tmp_path / "run", num_samples=1, baselines=True)
    methods = set(done.scores["method"])
    names = ("constant", "svm", "cnn", "neighbours")
    assert methods == {"posterior", *(f"baseline/{name}" for name in names)}
    assert [rival.title for rival in done.result.rivals]
    best = min(done.result.rivals, key=lambda rival: rival.baseline)
    assert done.result.rivals[0] == best
    monkeypatch.setattr(evaluation.methods, "fit_baseline", lambda *_: pytest.fail("fitted again"))
    again = evaluation.evaluate(tmp_path / "run", num_samples=1, baselines=True)
    pd.testing.assert_frame_equal(again.scores, done.scores)


def test_the_small_network_knows_a_shape_anywhere_in_the_image():
    """Bars across and bars down, whose pixels alone say nothing."""
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=600)
    images = np.zeros((600, 1, 8, 8), dtype=np.float32)
    for image, label, place in zip(images, labels, generator.integers(8, size=600), strict=True):
        image[0, :, place] = 1 - label
        image[0, place, :] = np.maximum(image[0, place, :], label)
    pixels = images.reshape(600, -1)
    network = SmallCNN((1, 8, 8)).fit(pixels[:400], labels[:400])
    probs = network.predict_proba(pixels[400:])
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert (probs.argmax(1) == labels[400:]).mean() > 0.95


def test_data_with_other_labels_or_the_same_anew_have_their_own_baseline(numbers):
    """A baseline that a process has fitted is taken for the same data alone."""

    def means(dataset):
        return fit_baseline("constant", dataset)(dataset.test).mean

    other = replace(numbers, train=numbers.train.select(torch.arange(20)))
    spread = replace(numbers, valid=numbers.valid.select(torch.arange(5)))
    assert torch.equal(means(numbers), means(numbers))
    for dataset in (other, numbers, spread):
        mean = dataset.train.labels.double().mean()
        torch.testing.assert_close(means(dataset), mean.expand(len(dataset.test), 1))
