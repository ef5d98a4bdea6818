"""Validation metrics are those of the posterior predictive."""

import math

import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import metrics, predict
from probattn.inference.validation import validate
from probattn.models import Categorical, Normal, Supervised, TokenCategorical


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
    model, guide = build(Normal(0.5))
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    torch.manual_seed(0)
    values = validate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_draws=5)
    torch.manual_seed(0)
    (likelihood,) = predict(model, guide, x, num_draws=5).components
    expected = likelihood.log_prob(y).exp().mean(0).log().mean().item()
    assert list(values) == ["log_prob"]
    assert math.isclose(values["log_prob"], expected, rel_tol=1e-9)


def test_labels_at_padding_do_not_count():
    model, guide = build(TokenCategorical())
    x, y = torch.randn(4, 5, 4, dtype=torch.float64), torch.randint(3, (4, 5))
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    values = []
    for labels in (y, torch.where(mask, y, 0)):
        torch.manual_seed(0)
        values.append(validate(model, guide, [(x, labels, mask)], num_draws=5))
    assert values[0] == values[1]
    assert list(values[0]) == ["log_prob"]


def test_data_without_labels_is_an_error():
    model, guide = build(Categorical())
    with pytest.raises(ValueError, match="must come with labels"):
        validate(model, guide, [torch.randn(4, 5, 4, dtype=torch.float64)], num_draws=2)
