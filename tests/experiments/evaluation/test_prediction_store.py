"""Stored predictions: loaded bit for bit, and predicted again if they are outdated or damaged."""

import pytest
import torch
from damage import AMOUNTS, accepted

from probattn.experiments.evaluation import prediction_store
from probattn.inference import CheckpointError, Prediction


def prediction(seed, labels=(0, 1, 2, 0)):
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(5, 4, 3, generator=generator).softmax(-1)
    return Prediction(
        probs=draws.mean(0),
        expected_entropy=torch.special.entr(draws).sum(-1).mean(0),
        energy=torch.rand(4, generator=generator),
        draws=draws,
        labels=torch.tensor(labels),
    )


def remember(run, origins, *, method="posterior", shift=0):
    """Return the result of load_or_predict, and the test sets that were predicted."""
    made = []

    def predict(name):
        made.append(name)
        return prediction(len(name) + shift)

    return prediction_store.load_or_predict(run, method, origins, predict), made


def assert_same(found, expected):
    for field in prediction_store.FIELDS:
        one, other = getattr(found, field), getattr(expected, field)
        assert one is other is None or torch.equal(one, other)


def test_what_is_stored_comes_back_bit_for_bit_but_for_single_draws(tmp_path):
    first, made = remember(tmp_path, {"shift/fog/1": "a", "shift/fog/10": "a"})
    assert made == ["shift/fog/1", "shift/fog/10"]
    again, made = remember(tmp_path, {"shift/fog/1": "a", "shift/fog/10": "a"}, shift=100)
    assert made == []
    for name, found in (first | prediction_store.load_predictions(tmp_path, "posterior")).items():
        assert_same(found, prediction(len(name)))
        assert_same(again[name], prediction(len(name)))
        assert found.draws is None


def test_only_what_is_missing_or_of_another_origin_is_made(tmp_path):
    remember(tmp_path, {"shift/fog/1": {"seed": 0}, "shift/fog/10": {"seed": 0}})
    origins = {"shift/fog/1": {"seed": 0}, "shift/fog/10": {"seed": 1}, "shift/fog/100": {"seed": 0}}
    found, made = remember(tmp_path, origins, shift=50)
    assert made == ["shift/fog/10", "shift/fog/100"]
    assert_same(found["shift/fog/1"], prediction(len("shift/fog/1")))
    assert_same(
        prediction_store.load_predictions(tmp_path, "posterior")["shift/fog/10"], prediction(len("shift/fog/10") + 50)
    )


def test_sets_that_are_not_asked_for_stay(tmp_path):
    remember(tmp_path, {"shift/fog/1": 0})
    remember(tmp_path, {"shift/fog/2": 0})
    assert set(prediction_store.load_predictions(tmp_path, "posterior")) == {"shift/fog/1", "shift/fog/2"}


def test_what_a_method_does_not_know_stays_unknown(tmp_path):
    bare = Prediction(probs=torch.full((2, 2), 0.5), labels=torch.tensor([0, 1]))
    prediction_store.load_or_predict(tmp_path, "temperature", {"test": 0}, lambda name: bare)
    found = prediction_store.load_predictions(tmp_path, "temperature")["test"]
    assert (found.energy, found.expected_entropy) == (None, None)
    assert torch.equal(found.probs, bare.probs)


def test_methods_do_not_mix(tmp_path):
    remember(tmp_path, {"test": 0}, method="laplace")
    remember(tmp_path, {"test": 0}, method="laplace+temperature", shift=7)
    assert_same(prediction_store.load_predictions(tmp_path, "laplace")["test"], prediction(4))
    assert_same(prediction_store.load_predictions(tmp_path, "laplace+temperature")["test"], prediction(11))


def test_a_damaged_file_is_made_again_and_named_by_who_only_reads(tmp_path):
    remember(tmp_path, {"ood/letters": 0})
    path = tmp_path / "predictions" / "posterior" / "ood-letters.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"ood-letters\.pt is damaged"):
        prediction_store.load_predictions(tmp_path, "posterior")
    found, made = remember(tmp_path, {"ood/letters": 0})
    assert made == ["ood/letters"]
    assert_same(prediction_store.load_predictions(tmp_path, "posterior")["ood/letters"], found["ood/letters"])


@AMOUNTS
def test_a_flipped_bit_is_never_read(tmp_path, amount):
    remember(tmp_path, {"test": {"seed": 0}})
    (path,) = tmp_path.rglob("*.pt")
    found = accepted(
        path, lambda _: prediction_store.load_predictions(tmp_path, "posterior"), error=CheckpointError, amount=amount
    )
    assert found == []


def test_a_run_without_predictions(tmp_path):
    assert prediction_store.load_predictions(tmp_path, "posterior") == {}


def test_parts_hold_a_corruption_with_all_its_severities():
    names = ["valid", "test", "shift/fog/1", "ood/letters", "shift/snow/1", "shift/fog/5"]
    parts = prediction_store.groups(names)
    assert parts == [["valid"], ["test"], ["shift/fog/1", "shift/fog/5"], ["ood/letters"], ["shift/snow/1"]]
