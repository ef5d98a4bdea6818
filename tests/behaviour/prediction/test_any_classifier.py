"""Classifiers of any origin as predictors: their probabilities, decisions and programs."""

import numpy as np
import pytest
import torch
from torch import nn

from probattn.inference import (
    Ensemble,
    Kept,
    Logits,
    NonFiniteError,
    RiskThreshold,
    TemperatureScaling,
    conformal,
)


def network():
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)
    return nn.Sequential(*layers)


def examples(n=200):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator)
    return x, torch.randint(4, (n,), generator=generator)


def stacked(inside, data):
    scaled = TemperatureScaling(inside).fit(data)
    threshold = RiskThreshold(scaled, target=0.9).fit(data)
    return conformal.LAC(threshold, alpha=0.2).fit(data)


def test_logits_become_probabilities_and_energies_in_evaluation_mode():
    module = network().train()
    x, y = examples()
    prediction = Logits(module).predict([(x[:150], y[:150]), (x[150:], y[150:])])
    assert all(layer.training for layer in module.modules())
    with torch.no_grad():
        logits = module.eval()(x)
    torch.testing.assert_close(prediction.probs, logits.softmax(-1))
    torch.testing.assert_close(prediction.energy, -logits.exp().sum(-1).log())
    assert torch.equal(prediction.labels, y)


def test_a_mask_is_the_second_argument():
    def mean_token(x, mask):
        return (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)

    x, mask = torch.randn(5, 3, 4), torch.ones(5, 3, dtype=torch.bool)
    mask[:, 2] = False
    probs = Logits(mean_token).predict([(x, None, mask)]).probs
    torch.testing.assert_close(probs, x[:, :2].mean(1).softmax(-1))


def test_kept_probabilities_give_the_decisions_of_the_network_that_they_come_from():
    x, y = examples()
    plain = Logits(network())
    probs = plain.predict(x).probs
    of_network = stacked(plain, [(x, y)])
    of_kept = stacked(Kept(), [(probs.numpy(), y.numpy())])
    expected = of_network(x)
    expected.pop("energy", None)
    assert expected["accepted"].any()
    torch.testing.assert_close(of_kept(probs), expected)


def test_members_without_samples_have_the_mutual_information_of_their_disagreement():
    """H(mean) − mean H, of plain and of scaled members."""
    x, y = examples()
    first, second = Logits(network()), Logits(lambda x: x[:, :4])
    for members in ([first, second], [TemperatureScaling(first).fit([(x, y)]), second]):
        probs = [member.predict(x).probs for member in members]
        entropies = [torch.distributions.Categorical(values).entropy() for values in probs]
        mean = torch.distributions.Categorical(sum(probs) / 2).entropy()
        information = Ensemble(members).predict(x).mutual_information
        torch.testing.assert_close(information, mean - sum(entropies) / 2, atol=1e-5, rtol=1e-4)


def test_what_is_no_logits_is_an_error():
    x, _ = examples(5)
    module = network()
    with pytest.raises(ValueError, match="probabilities"):
        Logits(lambda x: module.eval()(x).softmax(-1)).predict(x)
    with pytest.raises(TypeError, match="tensor"):
        Logits(lambda x: {"logits": module(x)}).predict(x)
    for shape in ((5,), (5, 1), (4, 3), (5, 2, 3)):
        with pytest.raises(ValueError, match="logits"):
            Logits(lambda x, shape=shape: torch.zeros(shape)).predict(x)
    with pytest.raises(NonFiniteError):
        Logits(lambda x: torch.full((len(x), 3), torch.nan)).predict(x)


@pytest.mark.parametrize(
    "probs",
    [[[0.5, 0.6]], [[1.5, -0.5]], [[np.nan, 1.0]], [[1.0]], [0.5, 0.5]],
)
def test_what_is_no_probabilities_is_an_error(probs):
    with pytest.raises(ValueError, match="prob"):
        Kept().predict(np.array(probs, dtype="float32"))
