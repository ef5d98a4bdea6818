"""Evaluated runs that have changed since, or cannot be compared."""

import pytest
import torch
from evaluated_runs import random_prediction, run, store

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation.evaluated_run import check_comparable, read_evaluated_run

BY = {"posterior": 0.5}


def test_scores_and_predictions_are_read_back(tmp_path):
    folder, prediction = run(tmp_path, "digits/softmax", methods=BY, seed=2), random_prediction()
    store(folder, {"test": prediction})
    evaluated = read_evaluated_run(folder)
    assert (evaluated.name, evaluated.seed, list(evaluated.scores["accuracy"])) == ("digits/softmax", 2, [0.5])
    stored = evaluated.predictions(["test", "valid"], "posterior")
    assert list(stored) == ["test"]
    assert torch.equal(stored["test"].probs, prediction.probs)


def test_a_run_that_was_trained_on_since_is_refused(tmp_path):
    folder = run(tmp_path, "digits/softmax", methods=BY)
    (folder / "best.pt").write_bytes(b"other weights")
    with pytest.raises(SettingsError, match="changed since .*probattn evaluate"):
        read_evaluated_run(folder)


@pytest.mark.parametrize("name", ["evaluation.json", "scores.csv"])
def test_without_an_evaluation_the_command_is_named(tmp_path, name):
    folder = run(tmp_path, "digits/softmax", methods=BY)
    (folder / name).unlink()
    with pytest.raises(SettingsError, match=r"was not evaluated.*probattn evaluate"):
        read_evaluated_run(folder)


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
    one = run(tmp_path / "one", "digits/softmax", methods=BY, data={"shift/snow/1": "b"})
    two = run(tmp_path / "two", "digits/kep-svgp", methods=BY, **changes)
    none = run(tmp_path / "none", "digits/cgp", methods=BY)
    runs = [read_evaluated_run(folder) for folder in (one, two)]
    check_comparable([runs[0], read_evaluated_run(none)])  # without corruptions
    if words is None:
        check_comparable(runs)
        return
    with pytest.raises(SettingsError, match=words):
        check_comparable(runs)
