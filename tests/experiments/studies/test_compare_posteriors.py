"""Guides beside a reference whose moments are known."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import constraints
from torch import nn
from torch.distributions import transform_to

from probattn import KEPSVGPAttention, guides, name_layers
from probattn.experiments.studies import compare_posteriors as agreement
from probattn.experiments.studies.compare_posteriors import compare_posteriors
from probattn.inference.diagnostics.posterior_draws import record
from probattn.models import Classifier

F64 = torch.float64
SITE = "network.0.u"


class First(nn.Module):
    def forward(self, x):
        return x[..., 0, :]


def classifier(layer, *, num_data=5):
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(layer, First(), nn.Linear(2, 3)), num_data=num_data).double()
    with torch.no_grad():
        model.network[2].weight.mul_(5)
    return model, (torch.randn(num_data, 4, 2, dtype=F64), torch.randint(3, (num_data,)))


def gaussian(guide, mean, tril):
    """Sets a full guide of event (1, 2, 2) to one Gaussian for both columns."""
    q = guide.get_submodule(SITE)
    with torch.no_grad():
        q.loc.copy_(mean.expand_as(q.loc))
        q.raw_tril.copy_(transform_to(constraints.softplus_lower_cholesky).inv(tril.expand_as(q.raw_tril)))


MEAN = torch.tensor([1.0, -2.0], dtype=F64)
TRIL = torch.tensor([[1.0, 0.0], [0.8, 0.6]], dtype=F64)  # standard deviations 1, correlation 0.8


def reference(num_samples=20_000):
    return {SITE: MEAN + torch.randn(num_samples, 1, 2, 2, dtype=F64) @ TRIL.T}


def compare(model, batch, chosen, truth, num_samples=4000):
    return compare_posteriors(model, chosen, batch, reference=truth, num_samples=num_samples)


def test_the_posterior_itself_is_right_in_everything():
    model, batch = classifier(KEPSVGPAttention(2, 1, rank=2))
    guide = guides.for_model(model)
    gaussian(guide, MEAN, TRIL)
    comparison = compare(model, batch, {"exact": guide}, reference())
    (row,) = comparison.itertuples()
    assert row.guide == "exact"
    assert row.site == SITE
    assert row.mean_error < 4 / 4000**0.5
    assert row.std_ratio == pytest.approx(1, abs=0.03)
    assert row.correlation_error < 0.04
    assert row.predictive < 0.01


def test_errors_are_in_units_of_the_posterior_and_each_shows_in_its_column():
    model, batch = classifier(KEPSVGPAttention(2, 1, rank=2))
    shifted, wide, flat = (guides.for_model(model) for _ in range(3))
    gaussian(shifted, MEAN + torch.tensor([0.5, 0.5], dtype=F64), TRIL)
    gaussian(wide, MEAN, 2 * TRIL)
    gaussian(flat, MEAN, torch.eye(2, dtype=F64))
    chosen = {"shifted": shifted, "wide": wide, "flat": flat, "point": guides.for_model(model, "delta")}
    with torch.no_grad():
        point = chosen["point"].get_submodule(SITE)
        point.whitened.copy_((MEAN + 0.1) / model.network[0].scale)  # no number of which means are exact
    comparison = compare(model, batch, chosen, reference())
    rows = {row.guide: row for row in comparison.itertuples()}
    assert rows["shifted"].mean_error == pytest.approx(0.5, abs=0.06)
    assert rows["shifted"].std_ratio == pytest.approx(1, abs=0.03)
    assert rows["wide"].std_ratio == pytest.approx(2, abs=0.06)
    assert rows["wide"].correlation_error < 0.04
    pairs = torch.tensor([0.8, 0, 0, 0, 0, 0.8])  # of four scalars, those of one column are correlated
    assert rows["flat"].correlation_error == pytest.approx(pairs.square().mean().sqrt().item(), abs=0.03)
    assert rows["flat"].mean_error < 0.06
    assert rows["point"].std_ratio == 0
    assert rows["point"].mean_error == pytest.approx(0.1, abs=0.03)
    assert math.isnan(rows["point"].correlation_error)
    assert rows["wide"].predictive > 0.03


def test_moments_and_correlations_are_those_of_numpy(monkeypatch):
    model, batch = classifier(KEPSVGPAttention(2, 1, rank=2))
    guide = guides.for_model(model)
    gaussian(guide, MEAN, TRIL)
    truth, kept = reference(50), record(60)
    monkeypatch.setattr(agreement, "record", lambda _: kept)
    (site,) = compare(model, batch, {"g": guide}, truth, num_samples=60).itertuples()
    draws, theirs = (each[SITE].flatten(1).numpy() for each in (kept.latents, truth))
    assert draws.shape == (60, 4)
    pairs = np.triu_indices(4, 1)
    gap = np.corrcoef(draws, rowvar=False)[pairs] - np.corrcoef(theirs, rowvar=False)[pairs]
    assert site.correlation_error == pytest.approx(math.sqrt((gap**2).mean()), rel=1e-9)
    error = (draws.mean(0) - theirs.mean(0)) / theirs.std(0, ddof=1)
    assert site.mean_error == pytest.approx(math.sqrt((error**2).mean()), rel=1e-9)
    assert site.std_ratio == pytest.approx((draws.std(0, ddof=1) / theirs.std(0, ddof=1)).mean(), rel=1e-9)


def test_the_predictive_distance_is_that_of_a_loop():
    """A point mass against 300 draws, one forward pass each, which take more than one piece."""
    model, batch = classifier(KEPSVGPAttention(2, 1, rank=2))
    guide = guides.for_model(model, "delta")
    truth = reference(300)

    def probs(u):
        with torch.no_grad():
            trace = poutine.trace(poutine.condition(model, data={SITE: u})).get_trace(batch[0])
        return trace.nodes["y"]["fn"].probs

    average = torch.stack([probs(u) for u in truth[SITE]]).mean(0)
    ours = probs(guide()[SITE].detach())
    expected = 0.5 * (ours - average).abs().sum(-1).mean().item()
    comparison = compare(model, batch, {"point": guide}, truth, num_samples=2)
    assert comparison["predictive"][0] == pytest.approx(expected, rel=1e-9)
    assert expected > 0.01


class WithPlate(nn.Module):
    """A program of the user's own: the layer is called in its plate."""

    def __init__(self):
        super().__init__()
        self.layer = KEPSVGPAttention(2, 1, rank=2)
        name_layers(self)

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Categorical(logits=self.layer(x)[..., 0, :]), obs=y)


def test_a_plate_of_the_model_is_no_site_that_the_reference_must_have():
    model = WithPlate().double()
    batch = torch.randn(5, 4, 2, dtype=F64), torch.randint(2, (5,))
    truth = {"layer.u": torch.randn(50, 1, 2, 2, dtype=F64)}
    comparison = compare(model, batch, {"full": guides.for_model(model)}, truth, num_samples=20)
    assert list(comparison["site"]) == ["layer.u"]
    assert 0 < comparison["predictive"][0] < 1


def test_reference_draws_of_other_sites_are_refused():
    model, batch = classifier(KEPSVGPAttention(2, 1, rank=2))
    with pytest.raises(KeyError, match="network.0.u"):
        compare(model, batch, {"full": guides.for_model(model)}, {"other": torch.zeros(2)})
