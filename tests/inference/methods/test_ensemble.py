"""Ensembles by hand: mixtures of given predictions, and members that are called once each."""

import math

import pytest
import torch
from fitted_methods import posterior_predictive
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import Ensemble, Prediction, predict
from probattn.inference.methods.ensemble import mix
from probattn.inference.methods.temperature import scale
from probattn.inference.prediction.predictor import Predictor
from probattn.models import Classifier, Supervised
from probattn.models.likelihoods import Bernoulli

F64 = torch.float64


class Fixed(Predictor):
    """A predictor with one answer."""

    def __init__(self, prediction):
        super().__init__()
        self.prediction = prediction

    def predict(self, data):
        assert self.prediction is not None
        return self.prediction

    def predict_batch(self, x, mask=None):
        return self.prediction


def member(number=3, *, n=5, classes=4, labels=None):
    draws = torch.randn(number, n, classes, dtype=F64).softmax(-1)
    return Prediction(
        probs=draws.mean(0),
        expected_entropy=torch.special.entr(draws).sum(-1).mean(0),
        energy=torch.randn(n, dtype=F64),
        draws=draws,
        labels=labels,
    )


def build(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(KEPSVGPAttention(4, 2, rank=2), nn.Flatten(-2), nn.Linear(12, 3))
    model = Classifier(network, num_data=9).double()
    return model, guides.for_model(model)


def test_probabilities_entropy_and_energy_are_means_over_members():
    members = [member() for _ in range(4)]
    result = mix(members)
    for i in range(5):
        for c in range(4):
            assert math.isclose(result.probs[i, c], sum(each.probs[i, c].item() for each in members) / 4)
        assert math.isclose(result.energy[i], sum(each.energy[i].item() for each in members) / 4, rel_tol=1e-12)
        entropies = [sum(-p * math.log(p) for p in each.draws[s, i].tolist()) / 3 for each in members for s in range(3)]
        assert math.isclose(result.expected_entropy[i], sum(entropies) / 4, rel_tol=1e-9)


def test_a_mixture_is_the_prediction_from_all_draws():
    members = [member() for _ in range(4)]
    result = mix(members)
    assert torch.equal(result.draws, torch.cat([each.draws for each in members]))
    torch.testing.assert_close(result.probs, result.draws.mean(0))
    torch.testing.assert_close(result.expected_entropy, torch.special.entr(result.draws).sum(-1).mean(0))


def test_members_weigh_the_same_whatever_their_number_of_draws():
    few, many = (Prediction(probs=member(number).probs) for number in (1, 50))
    torch.testing.assert_close(mix([few, many]).probs, (few.probs + many.probs) / 2)


def test_mutual_information_of_deterministic_members_is_their_jensen_shannon_divergence():
    members = [member(1) for _ in range(3)]
    result = mix(members)
    for i in range(5):
        mean = [sum(each.probs[i, c].item() for each in members) / 3 for c in range(4)]
        divergences = [
            sum(p * math.log(p / m) for p, m in zip(each.probs[i].tolist(), mean, strict=True)) for each in members
        ]
        assert math.isclose(result.mutual_information[i], sum(divergences) / 3, rel_tol=1e-9)


def test_an_ensemble_of_one_is_its_member():
    model, guide = build(0)
    data = [(torch.randn(5, 3, 4, dtype=F64), torch.tensor([0, 1, 2, 0, 1]))]
    torch.manual_seed(3)
    result = Ensemble([posterior_predictive(model, guide, num_samples=4)]).predict(data)
    torch.manual_seed(3)
    alone = predict(model, guide, data, num_samples=4)
    for field in ("probs", "expected_entropy", "energy", "labels"):
        assert torch.equal(getattr(result, field), getattr(alone, field)), field
    given = member(labels=torch.arange(5) % 4)
    for field in ("probs", "expected_entropy", "energy", "draws", "labels"):
        assert torch.equal(getattr(mix([given]), field), getattr(given, field)), field


def test_an_ensemble_mixes_what_its_members_say():
    models = [build(seed) for seed in range(3)]
    data = [(torch.randn(4, 3, 4, dtype=F64), torch.tensor([0, 1, 2, 0])), (torch.randn(1, 3, 4, dtype=F64),)]
    data[1] = (*data[1], torch.tensor([2]))
    torch.manual_seed(3)
    result = Ensemble(posterior_predictive(*each, num_samples=2) for each in models).predict(data)
    torch.manual_seed(3)
    each = [predict(*each, data, num_samples=2).probs for each in models]
    torch.testing.assert_close(result.probs, sum(each) / 3)
    assert result.labels.tolist() == [0, 1, 2, 0, 2]
    again = Ensemble([Fixed(result), Fixed(result)])
    torch.testing.assert_close(again.predict(data).probs, result.probs)


def test_what_one_member_lacks_the_mixture_lacks():
    whole, scaled = member(), scale(member(), 2.0)
    result = mix([whole, scaled])
    assert (result.expected_entropy, result.energy, result.draws, result.mutual_information) == (None,) * 4
    torch.testing.assert_close(result.probs, (whole.probs + scaled.probs) / 2)


def test_draws_in_different_numbers_are_refused():
    with pytest.raises(ValueError, match="different numbers of draws: 3, 5"):
        mix([member(3), member(5)])


@pytest.mark.parametrize("others", [torch.tensor([1, 0, 2, 3, 0]), torch.arange(5) % 4 + 1, None])
def test_labels_that_differ_are_refused(others):
    labels = torch.tensor([0, 1, 2, 3, 0])
    for members in ([member(labels=labels), member(labels=others)], [member(labels=others), member(labels=labels)]):
        with pytest.raises(ValueError, match="labels of the members differ.*do not shuffle"):
            mix(members)
    assert torch.equal(mix([member(labels=labels), member(labels=labels.clone())]).labels, labels)


def test_a_loader_that_shuffles_is_found_out():
    members = [posterior_predictive(*build(seed), num_samples=2) for seed in range(2)]
    data = TensorDataset(torch.randn(40, 3, 4, dtype=F64), torch.arange(40) % 3)
    with pytest.raises(ValueError, match="do not shuffle"):
        Ensemble(members).predict(DataLoader(data, batch_size=10, shuffle=True))
    assert Ensemble(members).predict(DataLoader(data, batch_size=10)).labels.tolist() == data.tensors[1].tolist()


def test_an_iterator_is_refused():
    members = [posterior_predictive(*build(seed), num_samples=2) for seed in range(2)]
    with pytest.raises(ValueError, match="gave no batch"):
        Ensemble(members).predict(iter([torch.zeros(2, 3, 4, dtype=F64)]))


def test_members_of_other_examples_or_classes_or_likelihoods_are_refused():
    with pytest.raises(ValueError, match=r"same examples and classes.*\(5, 4\), \(6, 4\)"):
        mix([member(), member(n=6)])
    with pytest.raises(ValueError, match=r"\(5, 4\), \(5, 3\)"):
        mix([member(), member(classes=3)])
    network = nn.Linear(4, 3)
    model = Supervised(network, Bernoulli(), num_data=9)
    with pytest.raises(ValueError, match="got None"):
        mix([predict(model, guides.for_model(model), torch.randn(2, 4))])


def test_nothing_to_mix():
    with pytest.raises(ValueError, match="at least one member"):
        mix([])
    with pytest.raises(ValueError, match="at least one member"):
        Ensemble([]).predict(torch.zeros(2, 3))
