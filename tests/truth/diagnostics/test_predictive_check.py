"""Predictive checks: statistics by hand; p-values in closed form."""

import math

import pytest
import torch
from conjugate import conjugate, design, gaussian_guide, posterior
from float64 import eye64, ones64, randn64, tensor64
from known_predictives import build
from scipy import stats
from torch import nn
from torch.testing import assert_close

from probattn.inference import metrics, posterior_predictive_check, predict
from probattn.inference.diagnostics.predictive_check import p_value
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Gaussian


def labels_and_values(check, y):
    """The data and each replicate, with their statistics."""
    yield y, check.observed
    for r, labels in enumerate(check.replicated_labels):
        yield labels, {name: values[r] for name, values in check.replicated.items()}


def test_statistics_of_classes_by_hand():
    model, guide = build()
    with torch.no_grad():
        model.network.head.weight.mul_(20)
    x, y = randn64(12, 5, 3), torch.randint(3, (12,))
    torch.manual_seed(1)
    check = posterior_predictive_check(
        model, guide, [(x[:7], y[:7]), (x[7:], y[7:])], num_replicates=20
    )
    torch.manual_seed(1)
    probs = predict(model, guide, x, num_samples=20).probs
    for labels, values in labels_and_values(check, y):
        shares = [(labels == c).double().mean().item() for c in range(3)]
        expected = {
            "accuracy": (probs.argmax(-1) == labels).double().mean().item(),
            "class_frequencies": shares,
            "ece": metrics.ece(probs, labels),
            "entropy": -sum(p * math.log(p) for p in shares if p),
        }
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            assert values[name].tolist() == pytest.approx(value)
    for name, value in check.observed.items():
        assert torch.equal(check.p_values[name], p_value(value, check.replicated[name]))


@pytest.mark.parametrize(("likelihood", "outputs"), [(Gaussian(), 2), (Bernoulli(), 3)])
def test_statistics_of_numbers_by_hand(likelihood, outputs):
    model, guide = build(likelihood, outputs=outputs)
    x, y = randn64(12, 5, 3), torch.randint(2, (12, outputs)).double()
    check = posterior_predictive_check(model, guide, [(x, y)], num_replicates=6)
    for labels, values in labels_and_values(check, y):
        center = labels.sum(0) / 12
        assert_close(values["mean"], center)
        assert_close(values["std"], ((labels - center).square().sum(0) / 12).sqrt())
        assert_close(values["rmse"], ((labels - check.prediction.mean).square().sum(0) / 12).sqrt())


@pytest.mark.parametrize(
    ("statistic", "error"),
    [(lambda y, _: y.unique(), RuntimeError), (lambda *_: math.nan, ValueError)],
)
def test_a_statistic_that_changes_its_shape_or_is_nan_is_an_error(statistic, error):
    model, guide = build()
    data = [(randn64(12, 5, 3), torch.zeros(12, dtype=torch.long))]
    with pytest.raises(error, match=r"size|spread"):
        posterior_predictive_check(model, guide, data, statistics={"spread": statistic})


def test_p_values_by_hand():
    replicated = tensor64([1.0, 2.0, 2.0, 3.0])
    expected = {0.0: 4.5 / 5, 1.0: 4 / 5, 2.0: 2.5 / 5, 2.5: 1.5 / 5, 3.0: 1 / 5, 4.0: 0.5 / 5}
    for observed, p in expected.items():
        assert math.isclose(p_value(tensor64(observed), replicated), p)
    both = p_value(torch.tensor([2.0, 4.0]), torch.stack((replicated, replicated), dim=1))
    assert_close(both, tensor64([0.5, 0.1]))


@pytest.mark.parametrize("from_prior", [False, True])
def test_a_conjugate_model_has_the_p_values_of_its_gaussian_predictive(from_prior):
    """T = w·y ~ N(w·Φ m, w·(Φ S Φᵀ + σ² I) w): replicates of one draw are correlated over
    examples."""
    model, x, y = conjugate(noise=0.5, num_data=8)
    phi, prior = design(model, x)
    mean, covariance = posterior(model, x, y, noise=0.5)
    guide = None if from_prior else gaussian_guide(model, mean, covariance)
    mean, covariance = (torch.zeros(2), prior) if from_prior else (mean[0], covariance)
    weights = {
        "one": eye64(32)[3],
        "sum": ones64(32),
        "along": phi[:, 0],
    }
    statistics = {
        name: lambda labels, _, w=w: labels[..., 0].flatten() @ w for name, w in weights.items()
    }
    data = list(zip(x.split(5), y.split(5), strict=True))
    check = posterior_predictive_check(
        model, guide, data, statistics=statistics, num_replicates=3000
    )
    total = phi @ covariance @ phi.T + 0.25 * eye64(32)
    for name, w in weights.items():
        law = stats.norm(float(w @ phi @ mean.double()), float(w @ total @ w) ** 0.5)
        assert stats.kstest(check.replicated[name], law.cdf).pvalue > 0.001
        p = law.sf(float(w @ y[..., 0].flatten()))
        assert 0.001 < p < 0.999
        assert abs(check.p_values[name] - p) < 4 * (p * (1 - p) / 3000) ** 0.5


def test_gaussian_replicates_of_integer_labels_are_not_cut_to_integers():
    """Truncated, numbers around 2.8 would have the mean 2.3 and the data's, 2.85, the p-value
    0.002."""
    model = Supervised(nn.Linear(1, 1), Gaussian(0.36), num_data=500)
    nn.init.constant_(model.network.bias, 2.85)
    y = 3 - (torch.arange(500)[:, None] % 100 < 15).long()
    check = posterior_predictive_check(model, None, [(torch.zeros(500, 1), y)], num_replicates=400)
    exact = {"mean": 0.5, "std": stats.chi2(499).sf(500 * 0.15 * 0.85 / 0.36**2)}
    for name, p in exact.items():
        assert abs(check.p_values[name].item() - p) < 4 * (p * (1 - p) / 400) ** 0.5 + 0.01
