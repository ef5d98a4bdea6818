"""Stored predictions: loaded bit for bit, and predicted again if they are outdated or damaged."""

from dataclasses import replace

import pytest
import torch
from damage import AMOUNTS, accepted

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation import prediction_store
from probattn.experiments.evaluation.provenance import Provenance
from probattn.inference import CheckpointError, Prediction
from probattn.inference.io.files import write_archive

SETS = ("train", "valid", "test", "ood/letters", "shift/fog/1", "shift/fog/2", "shift/fog/10", "shift/fog/100")
ORIGIN = Provenance(
    weights="w",
    settings="s",
    tokens="t",
    data={name: f"images of {name}" for name in SETS},
    method="posterior",
    num_samples=5,
    seed=0,
    versions={"probattn": "1"},
)


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


def remember(run, *names, origin=ORIGIN, shift=0):
    """Return the result of load_or_predict, and the test sets that were predicted."""
    made = []

    def predict(name):
        made.append(name)
        return prediction(len(name) + shift)

    return prediction_store.load_or_predict(run, names, origin, predict), made


def load(run, *names, origin=ORIGIN):
    return prediction_store.load_predictions(run, names, origin)


def assert_same(found, expected):
    for field in prediction_store.FIELDS:
        one, other = getattr(found, field), getattr(expected, field)
        assert one is other is None or torch.equal(one, other)


def test_what_is_stored_comes_back_bit_for_bit_but_for_single_draws(tmp_path):
    names = "shift/fog/1", "shift/fog/10"
    first, made = remember(tmp_path, *names)
    assert made == [*names]
    again, made = remember(tmp_path, *names, shift=100)
    assert made == []
    for name, found in (first | load(tmp_path, *names)).items():
        assert_same(found, prediction(len(name)))
        assert_same(again[name], prediction(len(name)))
        assert found.draws is None


CHANGES = {
    r"weights \(trained on since, or another best\.pt\)": {"weights": "other"},
    r"settings \(settings\.json\)": {"settings": "other"},
    r"tokens of the texts \(tokenizer\.json or encoder\.json\)": {"tokens": "other"},
    r"data \(train\)": {"data": ORIGIN.data | {"train": "other"}},
    r"data \(valid\)": {"data": ORIGIN.data | {"valid": "other"}},
    r"data \(test\)": {"data": ORIGIN.data | {"test": "other"}},
    r"number of samples \(5 and 6\)": {"num_samples": 6},
    r"seed of the samples \(0 and 1\)": {"seed": 1},
    r"version of probattn \(1 and 2\)": {"versions": {"probattn": "2"}},
    r"version of gpytorch \(None and 3\)": {"versions": {"probattn": "1", "gpytorch": "3"}},
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_prediction_of_another_origin_is_made_again_and_refused_by_who_only_reads(tmp_path, words):
    remember(tmp_path, "test")
    origin = replace(ORIGIN, **CHANGES[words])
    with pytest.raises(SettingsError, match=rf"test\.pt: the prediction of test has another {words}$"):
        load(tmp_path, "test", origin=origin)
    found, made = remember(tmp_path, "test", origin=origin, shift=50)
    assert made == ["test"]
    assert_same(found["test"], prediction(len("test") + 50))
    assert_same(load(tmp_path, "test", origin=origin)["test"], prediction(len("test") + 50))


def test_a_prediction_that_was_moved_to_another_method_is_made_again(tmp_path):
    remember(tmp_path, "test")
    (tmp_path / "predictions" / "posterior").rename(tmp_path / "predictions" / "laplace")
    origin = replace(ORIGIN, method="laplace")
    with pytest.raises(SettingsError, match=r"method \(posterior and laplace\)"):
        load(tmp_path, "test", origin=origin)
    assert remember(tmp_path, "test", origin=origin)[1] == ["test"]


def test_other_sets_do_not_outdate_a_prediction(tmp_path):
    remember(tmp_path, "test")
    origin = replace(ORIGIN, data=ORIGIN.data | {"ood/letters": "other", "ood/patches": "new"})
    assert remember(tmp_path, "test", origin=origin)[1] == []


def test_only_what_is_missing_or_of_another_origin_is_made(tmp_path):
    remember(tmp_path, "shift/fog/1", "shift/fog/10")
    names = "shift/fog/1", "shift/fog/10", "shift/fog/100"
    origin = replace(ORIGIN, data=ORIGIN.data | {"shift/fog/10": "other"})
    found, made = remember(tmp_path, *names, origin=origin, shift=50)
    assert made == ["shift/fog/10", "shift/fog/100"]
    assert_same(found["shift/fog/1"], prediction(len("shift/fog/1")))
    assert_same(load(tmp_path, *names, origin=origin)["shift/fog/10"], prediction(len("shift/fog/10") + 50))


def test_sets_that_are_not_asked_for_stay(tmp_path):
    remember(tmp_path, "shift/fog/1")
    remember(tmp_path, "shift/fog/2")
    assert set(load(tmp_path, "shift/fog/1", "shift/fog/2")) == {"shift/fog/1", "shift/fog/2"}


def test_what_a_method_does_not_know_stays_unknown(tmp_path):
    bare = Prediction(probs=torch.full((2, 2), 0.5), labels=torch.tensor([0, 1]))
    prediction_store.load_or_predict(tmp_path, ["test"], ORIGIN, lambda name: bare)
    found = load(tmp_path, "test")["test"]
    assert (found.energy, found.expected_entropy) == (None, None)
    assert torch.equal(found.probs, bare.probs)


def test_methods_do_not_mix(tmp_path):
    laplace, scaled = (replace(ORIGIN, method=method) for method in ("laplace", "laplace+temperature"))
    remember(tmp_path, "test", origin=laplace)
    remember(tmp_path, "test", origin=scaled, shift=7)
    assert_same(load(tmp_path, "test", origin=laplace)["test"], prediction(4))
    assert_same(load(tmp_path, "test", origin=scaled)["test"], prediction(11))


def test_a_damaged_file_is_made_again_and_named_by_who_only_reads(tmp_path):
    remember(tmp_path, "ood/letters")
    path = tmp_path / "predictions" / "posterior" / "ood-letters.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"ood-letters\.pt is damaged"):
        load(tmp_path, "ood/letters")
    found, made = remember(tmp_path, "ood/letters")
    assert made == ["ood/letters"]
    assert_same(load(tmp_path, "ood/letters")["ood/letters"], found["ood/letters"])


@pytest.mark.parametrize("entry", [0, [0, 0], [{"weights": "w"}, {}], [{}, {}, {}]])
def test_a_file_of_other_content_is_made_again_and_named_by_who_only_reads(tmp_path, entry):
    remember(tmp_path, "test")
    path = tmp_path / "predictions" / "posterior" / "test.pt"
    write_archive(path, {"format": prediction_store.FORMAT, "sets": {"test": entry}})
    with pytest.raises(CheckpointError, match=r"test\.pt is damaged"):
        load(tmp_path, "test")
    assert remember(tmp_path, "test")[1] == ["test"]


def test_a_missing_prediction_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"test\.pt has no prediction of test$"):
        load(tmp_path, "test")
    assert not prediction_store.has_predictions(tmp_path, "posterior")


@AMOUNTS
def test_a_flipped_bit_is_never_read(tmp_path, amount):
    remember(tmp_path, "test")
    (path,) = tmp_path.rglob("*.pt")
    whole = load(tmp_path, "test")["test"].probs
    for predictions in accepted(path, lambda _: load(tmp_path, "test"), error=CheckpointError, amount=amount):
        assert torch.equal(predictions["test"].probs, whole)


def test_parts_hold_a_corruption_with_all_its_severities():
    names = ["valid", "test", "shift/fog/1", "ood/letters", "shift/snow/1", "shift/fog/5"]
    parts = prediction_store.groups(names)
    assert parts == [["valid"], ["test"], ["shift/fog/1", "shift/fog/5"], ["ood/letters"], ["shift/snow/1"]]
