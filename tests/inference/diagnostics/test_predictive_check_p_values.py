"""P-values of predictive checks: closed forms, uniform for data from the model, small for misfit."""

import math

import pytest
import torch
from scipy import stats

from probattn import guides, priors
from probattn.inference.diagnostics.predictive_check import p_value, posterior_predictive_check
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian

F64 = torch.float64


def test_p_values_by_hand():
    replicated = torch.tensor([1.0, 2.0, 2.0, 3.0], dtype=F64)
    expected = {0.0: 4.5 / 5, 1.0: 4 / 5, 2.0: 2.5 / 5, 2.5: 1.5 / 5, 3.0: 1 / 5, 4.0: 0.5 / 5}
    for observed, p in expected.items():
        assert math.isclose(p_value(torch.tensor(observed, dtype=F64), replicated), p)
        assert math.isclose(p_value(torch.tensor(-observed, dtype=F64), -replicated), 1 - p)
    both = p_value(torch.tensor([2.0, 4.0]), torch.stack((replicated, replicated), dim=1))
    torch.testing.assert_close(both, torch.tensor([0.5, 0.1], dtype=F64))


def test_p_values_of_exchangeable_values_have_mean_one_half_ties_or_not():
    """Exactly: each of the R + 1 values as the observed one in turn."""
    for values in (torch.tensor([1.0, 2.0, 5.0, 9.0]), torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0]), torch.ones(3)):
        turns = [p_value(values[i], torch.cat((values[:i], values[i + 1 :]))) for i in range(len(values))]
        assert math.isclose(sum(turns) / len(values), 0.5, rel_tol=1e-12)


def linear(weights):
    return lambda labels, prediction: labels[:, 0] @ weights


@pytest.mark.parametrize("prior", [False, True])
def test_conjugate_model_has_the_p_values_of_its_gaussian_predictive(batches, conjugate, prior):
    """T = wᵀ y ~ N(wᵀ(b + A m), wᵀ(A S Aᵀ + σ² I) w): replicates of one draw are correlated over examples."""
    model, guide, x, y, b, a, lam, loc, cov = conjugate()
    weights = {"one": torch.eye(8, dtype=F64)[3], "sum": torch.ones(8, dtype=F64), "along": a[:, 0]}
    statistics = {name: linear(w) for name, w in weights.items()}
    check = posterior_predictive_check(
        model, None if prior else guide, batches(x, y[:, None]), statistics=statistics, num_replicates=4000
    )
    mean, spread = (b, torch.diag(lam**2)) if prior else (b + a @ loc, cov)
    total = a @ spread @ a.T + 0.25 * torch.eye(8, dtype=F64)
    for name, w in weights.items():
        law = stats.norm(float(w @ mean), float(w @ total @ w) ** 0.5)
        assert stats.kstest(check.replicated[name], law.cdf).pvalue > 0.001
        p = law.sf(float(w @ y))
        assert 0.001 < p < 0.999
        assert abs(check.p_values[name] - p) < 4 * (p * (1 - p) / 4000) ** 0.5
    independent = float(weights["along"] @ torch.diag(total.diag()) @ weights["along"]) ** 0.5
    law = stats.norm(float(weights["along"] @ mean), independent)
    assert stats.kstest(check.replicated["along"], law.cdf).pvalue < 1e-4


def agreement(labels, prediction):
    """Large where examples agree, in class or in number: nearly the same inputs share one draw of u."""
    return labels.mean().abs() if labels.is_floating_point() else labels.bincount(minlength=3).square().sum()


def ranks(x, truth, model, simulations, replicates=39):
    """Ranks of data that ``truth`` draws among replicates of ``model``, ties broken by chance; and their p-values."""
    found, p_values = [], []
    for _ in range(simulations):
        with torch.no_grad():
            y = truth(x)  # the program itself, under no handler
        check = posterior_predictive_check(
            model, None, [(x, y)], statistics={"agreement": agreement}, num_replicates=replicates
        )
        observed, replicated = check.observed["agreement"], check.replicated["agreement"]
        ties = int((replicated == observed).sum())
        found.append(int((replicated > observed).sum()) + int(torch.randint(ties + 1, ())))
        p_values.append(check.p_values["agreement"])
    return torch.tensor(found), torch.stack(p_values)


def uniformity(found, levels=40, bins=8):
    """p-value of χ² of the ranks: the same number is expected in every bin, exactly."""
    return stats.chisquare(found.bincount(minlength=levels).reshape(bins, -1).sum(1).numpy()).pvalue


@pytest.mark.parametrize("likelihood", [pytest.param(Categorical, marks=pytest.mark.slow), Gaussian])
def test_data_from_the_model_itself_have_uniform_p_values_and_from_another_prior_not(build, likelihood):
    """With many ties between classes, and with none between numbers, whose p-values are uniform as they are."""
    torch.manual_seed(2)
    x = torch.randn(5, 4, dtype=F64) + 0.05 * torch.randn(12, 5, 4, dtype=F64)
    options = {"outputs": 3 if likelihood is Categorical else 1}
    model, _ = build(likelihood(), **options)
    model.eval()
    with torch.no_grad():
        model.network.layer.out.bias.zero_()
        model.network.head.bias.zero_()
        outputs = torch.stack([model.network(x) for _ in range(100)])
        if likelihood is Categorical:
            outputs -= outputs.mean(-1, keepdim=True)
    options["gain"] = model.network.gain = 1 / outputs.std(0).mean().item()
    found, p_values = ranks(x, model, model, simulations=240)
    assert uniformity(found) > 0.01
    assert abs(p_values.mean() - 0.5) < 3 * p_values.std() / 240**0.5
    if likelihood is Gaussian:
        assert stats.kstest(p_values, "uniform").pvalue > 0.01
        assert math.isclose(p_values.std(), 12**-0.5, rel_tol=0.1)
    for factor in (0.25, 4.0):
        wrong, _ = build(likelihood(), prior=lambda scale, factor=factor: priors.normal(factor * scale), **options)
        wrong.load_state_dict(model.state_dict())
        assert uniformity(ranks(x, model, wrong, simulations=80)[0]) < 1e-6


def test_gaussian_replicates_of_integer_labels_are_not_cut_to_integers(constant_network):
    """Truncated, numbers around 2.8 would have the mean 2.3 and the data's, 2.85, the p-value 0.002."""
    torch.manual_seed(0)
    model = Supervised(constant_network(2.85), Gaussian(0.36), num_data=500)
    y = 3 - (torch.arange(500)[:, None] % 100 < 15).long()
    check = posterior_predictive_check(model, guides.for_model(model), [(torch.zeros(500, 1), y)], num_replicates=400)
    assert check.replicated_labels.dtype == check.labels.dtype == torch.float32
    assert torch.equal(check.labels, y.float())
    exact = {"mean": 0.5, "std": stats.chi2(499).sf(500 * 0.15 * 0.85 / 0.36**2)}
    for name, p in exact.items():
        assert abs(check.p_values[name].item() - p) < 4 * (p * (1 - p) / 400) ** 0.5 + 0.01
