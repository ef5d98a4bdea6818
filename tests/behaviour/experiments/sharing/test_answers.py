"""Answers: sorted by uncertainty, and written with the probabilities of all classes."""

import csv
import io
import json

import pandas as pd
import pytest
import torch

from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.sharing.answers import class_answers, sort_answers, to_csv
from probattn.experiments.sharing.pipeline import Pipeline
from probattn.inference import Prediction

PROBS = torch.tensor([[0.6, 0.3, 0.1], [0.34, 0.33, 0.33], [0.05, 0.05, 0.9]])
DECISIONS = {
    "temperature": 1.0,
    "quantile": 0.701,
    "class_quantiles": (0.3, 0.701, 0.99),
    "confidence": 0.5,
}
CALIBRATION = Calibration(weights="", num_samples=2, seed=0, **DECISIONS)


@pytest.fixture
def answers():
    prediction = Prediction(probs=PROBS, expected_entropy=torch.tensor([0.2, 0.9, 0.3]))

    def make(**options):
        return class_answers(prediction, ("cat", "dog", 'a "ship"'), **options)

    return make


def test_sets_and_acceptance_follow_the_calibration(answers):
    plain, by_class = (
        answers(calibration=CALIBRATION, sets=kind) for kind in ("plain", "by-class")
    )
    assert list(plain["set"]) == [["cat", "dog"], ["cat", "dog", 'a "ship"'], ['a "ship"']]
    assert list(by_class["set"]) == [["dog", 'a "ship"'], ["dog", 'a "ship"'], ['a "ship"']]
    assert list(plain["accepted"]) == [True, False, True]
    assert not {"set", "accepted"} & set(answers())


def test_the_most_uncertain_come_first(answers):
    def order(measure):
        return list(sort_answers(answers(), measure).index)

    assert (order("entropy"), order("confidence"), order("mutual_information")) == (
        [1, 0, 2],
        [1, 0, 2],
        [0, 1, 2],
    )


@pytest.mark.parametrize("is_stochastic", [True, False])
def test_samples_that_are_equal_have_no_mutual_information(is_stochastic):
    entropy = torch.special.entr(PROBS).sum(-1)
    expected = entropy - (0.1 if is_stochastic else 1e-7)
    answers = class_answers(Prediction(probs=PROBS, expected_entropy=expected), ("a", "b", "c"))
    assert ("mutual_information" in answers) == is_stochastic


@pytest.mark.parametrize("num_samples", [1, 3])
def test_mutual_information_is_a_column_of_every_network_with_a_posterior(trained, num_samples):
    """Also of inputs on which its samples agree, as a single sample does."""
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    for name, folder in trained.items():
        answers = Pipeline.from_pretrained(folder).answers(images, num_samples=num_samples)
        assert ("mutual_information" in answers) == (name == "digits/kep-svgp")


def test_files_have_the_probabilities_of_all_classes_and_the_failures(answers):
    failures = {"d\udcff": "is \ud83d"}
    table = list(csv.DictReader(io.StringIO(to_csv(answers(calibration=CALIBRATION), failures))))
    assert [float(table[1][f"p({name})"]) for name in ("cat", "dog", 'a "ship"')] == pytest.approx(
        PROBS[1].tolist()
    )
    assert json.loads(table[0]["set"]) == ["cat", "dog"]
    assert (table[-1]["input"], table[-1]["error"]) == (r"d\udcff", r"is \ud83d")
    assert list(csv.DictReader(io.StringIO(to_csv(pd.DataFrame(), failures))))[0]["error"]
