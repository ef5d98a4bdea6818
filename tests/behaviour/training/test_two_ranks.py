"""Training and prediction on two ranks of torchrun equal those of one process."""

import pytest
import torch
from two_ranks import KEP, TRAINED, after_prediction, fitted, local_predictions, predictions, torchrun, train

from probattn.inference import predict


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Results of each of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun("main", folder)
    assert done.returncode == 0, done.stdout
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture
def _one_thread(threads):
    threads(1)


def distance(one, other):
    """Return the largest difference of tensors by name; None equals None."""
    assert one.keys() == other.keys()
    assert all((one[name] is None) == (other[name] is None) for name in one)
    return max((one[name] - other[name]).abs().max().item() for name in one if one[name] is not None)


@pytest.mark.parametrize("name", TRAINED)
def test_two_processes_train_as_one(ranks, name):
    gradients, weights, terms = train(**TRAINED[name])
    for rank in ranks:
        first, last, seen = rank["trained"][name]
        assert distance(first, gradients) < 1e-10
        assert distance(last, weights) < 1e-10
        for step, whole in zip(seen, terms, strict=True):
            assert step == pytest.approx(whole, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("name", "options"), [("fitted", {}), ("accumulated", {"accumulate_grad_batches": 3})])
def test_fit_on_two_processes_is_fit_on_one(ranks, tmp_path, name, options):
    records, weights = fitted(tmp_path, family="delta", **options)
    seen, last = ranks[0][name]
    assert distance(last, weights) < 1e-10
    for one, whole in zip(seen, records, strict=True):
        names = whole.keys() - {"kind", "seconds"}
        assert all(one[key] == pytest.approx(whole[key], rel=1e-10, abs=1e-10) for key in names)


def test_a_run_on_two_processes_that_is_stopped_and_resumed_ends_bit_for_bit_as_one_that_is_not(ranks):
    assert all(distance(rank["whole"][1], rank["resumed"][1]) == 0 for rank in ranks)
    whole, resumed = ([each | {"seconds": 0} for each in ranks[0][name][0]] for name in ("whole", "resumed"))
    assert resumed == whole


def test_a_missing_loss_weight_is_noticed(ranks):
    first, last, _ = ranks[0]["trained"]["without loss weight"]
    gradients, weights, _ = train(attention=KEP)
    assert distance(first, gradients) > 1e-4
    assert distance(last, weights) > 1e-4


@pytest.mark.usefixtures("_one_thread")
def test_two_processes_predict_as_one_bit_for_bit(ranks):
    expected = predictions()
    for rank in ranks:
        assert rank["predicted"].keys() == expected.keys()
        for name, values in expected.items():
            found = rank["predicted"][name]
            assert found.keys() == values.keys()
            assert all(torch.equal(found[key], values[key]) for key in values), name


@pytest.mark.usefixtures("_one_thread")
def test_local_sites_are_drawn_on_each_rank(ranks):
    one, other = (rank["local"] for rank in ranks)
    assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = one["draws"].split(4, 1)
    assert torch.equal(first, local_predictions(predict)["draws"][:, :4])
    assert not torch.isclose(first, second).any()


@pytest.mark.usefixtures("_one_thread")
def test_the_loaders_generator_has_the_same_state_on_all_ranks_as_in_one_process(ranks):
    probs, state = after_prediction()
    for rank in ranks:
        assert torch.equal(rank["generator"][0], probs)
        assert torch.equal(rank["generator"][1], state)


def test_loaders_that_would_train_wrongly_are_refused(ranks):
    for rank in ranks:
        errors = rank["errors"]
        assert errors.pop("fine") is None
        assert {error[0] for error in errors.values()} == {"ValueError"}


def test_results_are_broadcast_from_the_first_rank_and_means_are_over_all(ranks):
    assert [rank["broadcast"] for rank in ranks] == [0, 0]
    assert [rank["averaged"] for rank in ranks] == [{"rank": 0.5}] * 2
