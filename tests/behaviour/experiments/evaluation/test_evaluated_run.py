"""Evaluated runs that have changed since, or cannot be compared."""

import contextlib

import pytest
import torch
from evaluated_runs import random_prediction, run, store

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation.evaluated_run import (
    check_comparable,
    read_evaluated_run,
    to_frame,
)

BY = {"posterior": 0.5}


def test_scores_and_predictions_are_read_back(tmp_path):
    folder, prediction = run(tmp_path, "digits/softmax", methods=BY, seed=2), random_prediction()
    store(folder, {"test": prediction})
    evaluated = read_evaluated_run(folder)
    assert (evaluated.name, evaluated.seed, list(evaluated.scores["accuracy"])) == (
        "digits/softmax",
        2,
        [0.5],
    )
    stored = evaluated.predictions(["test", "valid"], "posterior")
    assert list(stored) == ["test"]
    assert torch.equal(stored["test"].probs, prediction.probs)


@pytest.mark.parametrize("name", ["best.pt", "evaluation.json", "scores.csv"])
def test_without_an_evaluation_of_these_weights_the_command_is_named(tmp_path, name):
    folder = run(tmp_path, "digits/softmax", methods=BY)
    (folder / name).unlink()
    if name == "best.pt":
        (folder / name).write_bytes(b"other weights")
    with pytest.raises(SettingsError, match="changed since|was not evaluated") as raised:
        read_evaluated_run(folder)
    assert "probattn evaluate" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draws": (5, 0)}, "num_samples"),
        ({"draws": (10, 1)}, "seed"),
        ({"data": {"test": "other"}}, "test"),
        ({"data": {"shift/snow/1": "b", "shift/snow/2": "a"}}, "corruptions"),
        ({"data": {"valid": "other", "ood/letters": "a", "shift/snow/1": "b"}}, None),
    ],
)
def test_other_data_samples_or_corruptions_are_refused(tmp_path, changes, words):
    options = {"softmax": {"data": {"shift/snow/1": "b"}}, "kep-svgp": changes, "cgp": {}}
    folders = [
        run(tmp_path / name, f"digits/{name}", methods=BY, **options[name]) for name in options
    ]
    one, two, none = map(read_evaluated_run, folders)
    check_comparable([one, none])  # without corruptions
    with pytest.raises(SettingsError, match=words) if words else contextlib.nullcontext():
        check_comparable([one, two])


def test_a_class_whose_name_is_no_text_has_scores():
    frame = to_frame({"posterior": {"class/\udcff": {"n": 3, "accuracy": 0.5}}}, run="a", seed=0)
    assert list(frame["set"]) == [r"class/\udcff"]
