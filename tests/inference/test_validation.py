"""Validation metrics are those of the posterior predictive."""

import math

import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import metrics, predict
from probattn.inference.validation import validate
from probattn.models import Categorical, Supervised, TokenCategorical
from probattn.models.likelihoods import Gaussian


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


class Tokens(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(4, 2, rank=2), nn.Linear(4, 3)

    def forward(self, x, mask=None):
        return self.head(self.attention(x, mask))


def build(likelihood):
    network = PyroModule[nn.Sequential](KEPSVGPAttention(4, 2, rank=2), Pool(), nn.Linear(4, 3))
    network = Tokens() if isinstance(likelihood, TokenCategorical) else network
    model = Supervised(network, likelihood, num_data=9).double()
    return model, guides.for_model(model)


def test_a_classifier_has_all_metrics_of_its_mean_probabilities():
    model, guide = build(Categorical())
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randint(3, (9,))
    data = [(x[:4], y[:4]), (x[4:], y[4:])]
    torch.manual_seed(0)
    values = validate(model, guide, data, num_draws=5)
    torch.manual_seed(0)
    probs = predict(model, guide, x, num_draws=5).probs
    expected = metrics.evaluate(probs, y)
    assert values == pytest.approx({"log_prob": -expected["nll"], **expected}, nan_ok=True)


def test_regression_has_the_mean_log_density():
    model, guide = build(Gaussian(0.5))
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    torch.manual_seed(0)
    values = validate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_draws=5)
    torch.manual_seed(0)
    (likelihood,) = predict(model, guide, x, num_draws=5).components
    expected = likelihood.log_prob(y).exp().mean(0).log().mean().item()
    assert list(values) == ["log_prob"]
    assert math.isclose(values["log_prob"], expected, rel_tol=1e-9)


@pytest.mark.parametrize("padding", [0, -100, 7])
def test_tokens_have_all_metrics_over_the_real_ones_of_the_set_and_labels_at_padding_do_not_count(padding):
    model, guide = build(TokenCategorical())
    x, y = torch.randn(6, 5, 4, dtype=torch.float64), torch.randint(3, (6, 5))
    mask = torch.arange(5) < torch.tensor([[2], [1], [3], [5], [4], [3]])
    labels = torch.where(mask, y, padding)
    torch.manual_seed(0)
    batches = [(x[:2, :2], labels[:2, :2], mask[:2, :2]), (x[2:], labels[2:], mask[2:])]
    values = validate(model, guide, batches, num_draws=5)
    torch.manual_seed(0)
    whole = predict(model, guide, [(x, y, mask)], num_draws=5)
    expected = metrics.evaluate(whole.probs[mask], y[mask])
    assert values == pytest.approx({"log_prob": whole.log_prob(y).mean().item(), **expected}, rel=1e-6)
    assert expected["accuracy"] not in (0, 1)


def test_data_without_labels_is_an_error():
    model, guide = build(Categorical())
    with pytest.raises(ValueError, match="must come with labels"):
        validate(model, guide, [torch.randn(4, 5, 4, dtype=torch.float64)], num_draws=2)
