"""Ensembles by hand: mixtures of given predictions, and members that are called once each."""

import pytest
import torch
from fitted_methods import posterior_predictive
from float64 import randn64, zeros64
from known_predictives import build
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from probattn.inference import Ensemble, Prediction, predict
from probattn.inference.methods.ensemble import mix
from probattn.inference.methods.scaling import scale


def member(number=3, *, n=5, classes=4, labels=None):
    draws = randn64(number, n, classes).softmax(-1)
    expected_entropy, energy = torch.special.entr(draws).sum(-1).mean(0), randn64(n)
    return Prediction(
        probs=draws.mean(0),
        expected_entropy=expected_entropy,
        energy=energy,
        draws=draws,
        labels=labels,
    )


def test_probabilities_entropies_and_energies_are_means_over_members_and_their_draws():
    labels = torch.arange(5) % 4
    members = [member(labels=labels) for _ in range(4)]
    result, draws = mix(members), torch.cat([part.draws for part in members])
    mean, expected = draws.mean(0), -(draws * draws.log()).sum(-1).mean(0)
    assert_close(result.probs, mean)
    assert_close(result.energy, sum(part.energy for part in members) / 4)
    assert_close(result.expected_entropy, expected)
    assert_close(result.mutual_information, -(mean * mean.log()).sum(-1) - expected)
    assert torch.equal(result.draws, draws)
    assert torch.equal(result.labels, labels)


def test_members_weigh_the_same_whatever_their_number_of_draws():
    few, many = (Prediction(probs=member(number).probs) for number in (1, 50))
    assert_close(mix([few, many]).probs, (few.probs + many.probs) / 2)
    with pytest.raises(ValueError, match="numbers of draws"):
        mix([member(3), member(5)])


def test_what_one_member_lacks_the_mixture_lacks():
    whole, scaled = member(), scale(member(), 2.0)
    result = mix([whole, scaled])
    assert (result.expected_entropy, result.energy, result.draws, result.mutual_information) == (
        None,
    ) * 4
    assert_close(result.probs, (whole.probs + scaled.probs) / 2)


def test_an_ensemble_mixes_what_its_members_say():
    models, y = [build() for _ in range(3)], torch.tensor([0, 1, 2, 0, 2])
    data = list(zip(randn64(5, 3, 3).split([4, 1]), y.split([4, 1]), strict=True))
    for members in (models, models[:1]):
        torch.manual_seed(3)
        result = Ensemble(posterior_predictive(*pair, num_samples=2) for pair in members).predict(
            data
        )
        torch.manual_seed(3)
        single = [predict(*pair, data, num_samples=2) for pair in members]
        for field in ("probs", "expected_entropy", "energy", "labels"):
            assert_close(getattr(result, field), getattr(mix(single), field))
        assert result.num_samples == 2 * len(members)


@pytest.mark.parametrize("others", [torch.tensor([1, 0, 2, 3, 0]), torch.arange(5) % 4 + 1, None])
def test_labels_that_differ_are_an_error(others):
    labels = torch.tensor([0, 1, 2, 3, 0])
    for members in (
        [member(labels=labels), member(labels=others)],
        [member(labels=others), member(labels=labels)],
    ):
        with pytest.raises(ValueError, match="do not shuffle"):
            mix(members)


def test_a_loader_that_shuffles_and_an_iterator_are_found_out():
    ensemble = Ensemble([posterior_predictive(*build(), num_samples=2) for _ in range(2)])
    data = TensorDataset(randn64(40, 3, 3), torch.arange(40) % 3)
    with pytest.raises(ValueError, match="do not shuffle"):
        ensemble.predict(DataLoader(data, batch_size=10, shuffle=True))
    assert torch.equal(ensemble.predict(DataLoader(data, batch_size=10)).labels, data.tensors[1])
    with pytest.raises(ValueError, match="no batch"):
        ensemble.predict(iter([zeros64(2, 3, 3)]))


def test_members_predict_the_same_examples_and_classes():
    for members in (
        [member(), member(n=6)],
        [member(), member(classes=3)],
        [Prediction(mean=torch.zeros(2, 1))],
        [],
    ):
        with pytest.raises(ValueError, match=r"same examples|probabilities|member"):
            mix(members)
