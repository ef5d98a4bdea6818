"""Validation metrics are those of the posterior predictive."""

import math

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, metrics, predict
from probattn.inference.metrics import regression
from probattn.inference.training.validation import is_better, validate
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, Ordinal, StudentT, TokenCategorical


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(4, 2, rank=2), nn.Linear(4, 3)

    def forward(self, x, mask=None):
        return self.head(self.attention(x, mask))


def build(likelihood, outputs=3):
    network = nn.Sequential(KEPSVGPAttention(4, 2, rank=2), Pool(), nn.Linear(4, outputs))
    network = Tokens() if isinstance(likelihood, TokenCategorical) else network
    model = Supervised(network, likelihood, num_data=9).double()
    return model, guides.for_model(model)


def test_a_classifier_has_all_metrics_of_its_mean_probabilities():
    model, guide = build(Categorical())
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randint(3, (9,))
    data = [(x[:4], y[:4]), (x[4:], y[4:])]
    torch.manual_seed(0)
    values = validate(model, guide, data, num_samples=5)
    torch.manual_seed(0)
    probs = predict(model, guide, x, num_samples=5).probs
    expected = metrics.evaluate(probs, y)
    assert values == pytest.approx({"log_prob": -expected["nll"], **expected}, nan_ok=True)


def test_regression_has_the_mean_log_density_and_the_metrics_of_numbers():
    model, guide = build(Gaussian(0.5))
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    torch.manual_seed(0)
    values = validate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_samples=5)
    torch.manual_seed(0)
    (likelihood,) = predict(model, guide, x, num_samples=5).components
    expected = likelihood.log_prob(y).exp().mean(0).log().mean().item()
    assert math.isclose(values["log_prob"], expected, rel_tol=1e-9)
    torch.manual_seed(0)
    whole = predict(model, guide, x, num_samples=5)
    assert values == pytest.approx({"log_prob": expected, **regression.evaluate(whole, y)}, rel=1e-6)
    assert values["rmse"] == pytest.approx((whole.mean - y).square().mean().sqrt().item())


def test_binary_labels_and_ordered_classes_have_metrics_of_their_own():
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randint(2, (9, 3))
    model, guide = build(Bernoulli())
    torch.manual_seed(0)
    values = validate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_samples=5)
    torch.manual_seed(0)
    mean = predict(model, guide, x, num_samples=5).mean
    assert values == pytest.approx({"log_prob": values["log_prob"], **metrics.label_metrics(mean, y)}, nan_ok=True)
    model, guide = build(Ordinal(4), outputs=1)
    y = torch.arange(9) % 4
    torch.manual_seed(0)
    values = validate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_samples=5)
    torch.manual_seed(0)
    probs = predict(model, guide, x, num_samples=5).probs
    assert values["rps"] == pytest.approx(metrics.rps(probs, y))
    assert values["accuracy"] == metrics.accuracy(probs, y)
    assert values["log_prob"] == pytest.approx(-metrics.nll(probs, y))


def test_validation_of_numbers_moves_no_generator_further_than_prediction():
    model, guide = build(StudentT())
    x, y = torch.randn(9, 5, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    torch.manual_seed(0)
    validate(model, guide, [(x, y)], num_samples=5)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    predict(model, guide, x, num_samples=5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", metrics.MONITORS)
def test_every_monitor_knows_its_better_direction(name):
    higher = name in ("log_prob", "accuracy", "mcc", "auroc", "aupr_success", "aupr_error") or name in (
        "label_accuracy",
        "exact_match",
        "label_auroc",
    )
    assert is_better(name, 0.6, 0.5) == higher
    assert is_better(name, 0.4, 0.5) != higher
    assert TrainOptions(monitor=name).monitor == name


@pytest.mark.parametrize("padding", [0, -100, 7])
def test_tokens_have_all_metrics_over_the_real_ones_of_the_set_and_labels_at_padding_do_not_count(padding):
    model, guide = build(TokenCategorical())
    x, y = torch.randn(6, 5, 4, dtype=torch.float64), torch.randint(3, (6, 5))
    mask = torch.arange(5) < torch.tensor([[2], [1], [3], [5], [4], [3]])
    labels = torch.where(mask, y, padding)
    torch.manual_seed(0)
    batches = [(x[:2, :2], labels[:2, :2], mask[:2, :2]), (x[2:], labels[2:], mask[2:])]
    values = validate(model, guide, batches, num_samples=5)
    torch.manual_seed(0)
    whole = predict(model, guide, [(x, y, mask)], num_samples=5)
    expected = metrics.evaluate(whole.probs[mask], y[mask])
    assert values == pytest.approx({"log_prob": whole.log_prob(y).mean().item(), **expected}, rel=1e-6)
    assert expected["accuracy"] not in (0, 1)
