"""Statistics of inputs and of latent draws in predictive checks."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import nn

from probattn import guides, local_sites
from probattn.inference.diagnostics.predictive_check import REGRESSION, posterior_predictive_check
from probattn.models import Supervised
from probattn.models.likelihoods import Gaussian, TokenCategorical

F64 = torch.float64


@pytest.mark.parametrize("size", [8, 3])
def test_a_discrepancy_compares_data_and_replicate_at_the_same_draw(batches, conjugate, size):
    """T(y, v) = ‖y − b − A v‖² / σ²: of replicates χ²(8) whatever v is, so that p = E_{v | y} P(χ²(8) ≥ T(y, v))."""
    model, guide, x, y, b, a, _, loc, cov = conjugate()
    seen = []

    def chi_squared(labels, prediction, *, x, latents):
        seen.append(x)
        v = latents["network.layer.u"][0, 0]
        return ((labels[:, 0] - b - a @ v) / 0.5).square().sum()

    for shift in (0.0, 1.0):
        labels = y + shift
        check = posterior_predictive_check(
            model,
            guide,
            batches(x, labels[:, None], size=size),
            statistics={"chi_squared": chi_squared},
            num_replicates=4000,
        )
        assert torch.equal(seen[-1], x)
        assert stats.kstest(check.replicated["chi_squared"], stats.chi2(8).cdf).pvalue > 0.001
        rng = torch.Generator().manual_seed(5)
        v = loc + torch.randn(20_000, 2, generator=rng, dtype=F64) @ torch.linalg.cholesky(cov).T
        realised = ((labels - b - v @ a.T) / 0.5).square().sum(1)
        assert check.observed["chi_squared"].shape == (4000,)
        assert stats.ks_2samp(check.observed["chi_squared"], realised).pvalue > 0.001
        p = stats.chi2(8).sf(realised).mean()
        assert abs(check.p_values["chi_squared"].item() - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-3
        assert check.is_discrepancy("chi_squared")
        numbers = str(check).splitlines()[1].split()
        assert float(numbers[1]) == pytest.approx(realised.mean().item(), rel=0.1)
        assert float(numbers[5]) == pytest.approx(p, abs=0.03)


def test_latents_of_each_example_are_those_of_the_same_draw():
    """The prior of g is drawn anew for each example; the labels are the sign of what follows from it."""

    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x, y=None, mask=None):
            with local_sites(batch=len(x), num_data=6):
                infer = {"local": True, "posterior": dist.Normal(x, 0.1)}
                z = pyro.sample("z", dist.Normal(torch.zeros(len(x)), 1.0), infer=infer)
                return pyro.sample("y", dist.Normal(z, 1e-5), obs=y, infer={"local": True})

    def distance(labels, prediction, *, latents):
        return (labels - latents["z"]).abs().max()

    x = 10 * torch.arange(6.0)
    check = posterior_predictive_check(
        Local(), None, [(x[:4], x[:4]), (x[4:], x[4:])], statistics={"distance": distance}, num_replicates=30
    )
    assert check.replicated["distance"].max() < 1e-3
    assert check.observed["distance"].min() > 1


def test_a_trend_that_the_model_misses_shows_in_a_statistic_of_the_inputs(constant_network, batches):
    torch.manual_seed(0)
    x = torch.randn(200, 1)
    y = 0.3 * x + 0.954 * torch.randn(200, 1)
    model = Supervised(constant_network(0.0), Gaussian(1.0), num_data=200)

    def slope(labels, prediction, x):
        return ((labels - prediction.mean) * x).mean()

    check = posterior_predictive_check(
        model,
        guides.for_model(model),
        batches(x, y, size=60),
        statistics={"std": REGRESSION["std"], "slope": slope},
        num_replicates=400,
    )
    assert check.p_values["slope"] < 0.005
    assert 0.025 < check.p_values["std"] < 0.975
    expected = ((check.replicated_labels[:, :, 0] - 0.0) * x[:, 0]).double().mean(1)
    torch.testing.assert_close(check.replicated["slope"], expected)


def test_inputs_of_tokens_are_those_of_the_real_ones(build, data):
    model, guide = build(TokenCategorical(), pool=False)
    x, y = data(likelihood=TokenCategorical)
    mask = torch.arange(5) < torch.tensor([2, 1, 2, 2, 1, 2, 2, 5, 4, 1, 3, 5])[:, None]
    short = [(x[:7, :2], y[:7, :2], mask[:7, :2]), (x[7:], y[7:], mask[7:])]
    seen = []

    def spy(labels, prediction, x):
        seen.append(x)
        return float(len(labels))

    posterior_predictive_check(model, guide, short, statistics={"spy": spy}, num_replicates=2)
    assert all(torch.equal(each, x[mask]) for each in seen)
