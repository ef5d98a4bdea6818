"""Validation metrics are those of the posterior predictive of the whole set."""

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import metrics, predict
from probattn.inference.metrics import regression
from probattn.inference.training.validation import validate
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, Ordinal, TokenCategorical

X = torch.randn(9, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CASES = {
    "classes": (Categorical, 3, torch.arange(9) % 3, lambda p, y: metrics.evaluate(p.probs, y)),
    "numbers": (lambda: Gaussian(0.5), 3, X[:, 0, :3], lambda p, y: regression.evaluate(p, y)),
    "labels": (
        Bernoulli,
        3,
        (X[:, 0, :3] > 0).long(),
        lambda p, y: metrics.label_metrics(p.mean, y),
    ),
    "ordinal": (
        lambda: Ordinal(4),
        1,
        torch.arange(9) % 4,
        lambda p, y: {"rps": metrics.rps(p.probs, y)},
    ),
}


class Network(nn.Module):
    def __init__(self, outputs, pool=True):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 2, rank=2)
        self.head = nn.Linear(4, outputs)
        self.pool = pool

    def forward(self, x, mask=None):
        outputs = self.head(self.attention(x, mask))
        return outputs.mean(-2) if self.pool else outputs


def both(network, likelihood, batches, data):
    """Validation metrics of batches, and the prediction of all data from the same random state."""
    model = Supervised(network, likelihood, num_data=9).double()
    guide = guides.for_model(model)
    results = []
    for call, given in ((validate, batches), (predict, data)):
        torch.manual_seed(0)
        results.append(call(model, guide, given, num_samples=5))
    return results


@pytest.mark.parametrize("case", CASES)
def test_metrics_are_of_the_whole_set(case):
    likelihood, outputs, y, expected = CASES[case]
    values, prediction = both(Network(outputs), likelihood(), [(X[:4], y[:4]), (X[4:], y[4:])], X)
    assert values["log_prob"] == pytest.approx(prediction.log_prob(y).mean().item())
    for name, value in expected(prediction, y).items():
        assert values[name] == pytest.approx(value, rel=1e-6, nan_ok=True), name


@pytest.mark.parametrize("padding", [-100, 7])
def test_metrics_of_tokens_are_over_the_real_ones_and_labels_at_padding_do_not_count(padding):
    x, y = X[:6], torch.randint(3, (6, 5))
    mask = torch.arange(5) < torch.tensor([[2], [1], [3], [5], [4], [3]])
    labels = torch.where(mask, y, padding)
    batches = [(x[:2, :2], labels[:2, :2], mask[:2, :2]), (x[2:], labels[2:], mask[2:])]
    values, prediction = both(Network(3, pool=False), TokenCategorical(), batches, [(x, y, mask)])
    assert values["log_prob"] == pytest.approx(prediction.log_prob(y).mean().item(), rel=1e-6)
    for name, value in metrics.evaluate(prediction.probs[mask], y[mask]).items():
        assert values[name] == pytest.approx(value, rel=1e-6), name
