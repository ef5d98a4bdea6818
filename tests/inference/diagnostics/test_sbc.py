"""Simulation-based calibration: exact inference is uniform, wrong inference is found."""

import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.poutine.messenger import Messenger

from probattn import KEPSVGPAttention, guides
from probattn.inference import posterior_draws, refit_guide
from probattn.inference.diagnostics.sbc import SBC, simulation_based_calibration
from probattn.models import Supervised

F64, NOISE, SITE = torch.float64, 0.8, "network.u"


def conjugate():
    """y = (E + R) Λ⁻¹ u + noise."""
    layer = KEPSVGPAttention(2, 1, rank=2)
    model = Supervised(layer, lambda f, mask=None: dist.Normal(f, NOISE).to_event(2), num_data=2).double()
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        layer.out.bias.zero_()
    return model, torch.randn(2, 3, 2, dtype=F64)


def exact(model, *, shift=0.0, spread=1.0, number=49):
    """The closed-form posterior (MATH 1(e)), its mean moved by ``shift`` and its draws ``spread`` times as wide."""

    def infer(x, y):
        e, r, _, _ = model.network.scores(x)
        lam = model.network.scale[0]
        features = ((e + r)[:, 0] / lam).flatten(0, 1)
        covariance = (torch.diag(lam**-2) + features.T @ features / NOISE**2).inverse()
        mean = (covariance @ features.T @ y.flatten(0, 1) / NOISE**2).T
        std = covariance.diag().sqrt()
        noise = torch.randn(number, 1, 2, 2, dtype=F64) @ torch.linalg.cholesky(covariance).T
        return {SITE: (mean + shift * std + spread * noise).detach()}

    return infer


def calibrate(model, x, infer, **options):
    return simulation_based_calibration(model, x, infer, **{"num_simulations": 200, "num_samples": 49} | options)


def test_the_exact_posterior_is_calibrated():
    model, x = conjugate()
    sbc = calibrate(model, x, exact(model))
    assert sbc.ranks.shape == (200, 4)
    assert sbc.names == tuple(f"{SITE}[0, {d}, {i}]" for d in range(2) for i in range(2))
    assert sbc.p_value() > 0.05
    assert sbc.ranks.double().mean(0).sub(24.5).abs().max() < 5 * 14.4 / 200**0.5


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        ({"spread": 0.5}, lambda counts: counts[:, [0, -1]].sum(1) / counts[:, 9:11].sum(1) > 1.5),
        ({"spread": 2.0}, lambda counts: counts[:, [0, -1]].sum(1) / counts[:, 9:11].sum(1) < 0.7),
        ({"shift": 0.7}, lambda counts: counts[:, :10].sum(1) > 1.5 * counts[:, 10:].sum(1)),
    ],
)
def test_wrong_posteriors_are_found_by_their_shapes(wrong, shape):
    model, x = conjugate()
    sbc = calibrate(model, x, exact(model, **wrong))
    assert sbc.p_value() < 1e-3
    counts, _ = sbc.counts()
    assert shape(counts).all()


class Truths(Messenger):
    """Keeps u and y of every run that draws its labels."""

    def __init__(self):
        super().__init__()
        self.pairs = []

    def _pyro_post_sample(self, msg):
        if msg["name"] == SITE:
            self.u = msg["value"]
        if msg["name"] == "y" and not msg["is_observed"]:
            self.pairs.append((self.u, msg["value"]))


def test_ranks_are_counts_of_draws_below_the_truth():
    model, x = conjugate()
    draws, seen = {SITE: torch.randn(8, 1, 2, 2, dtype=F64)}, []

    def infer(x, y):
        seen.append(y)
        return draws

    with Truths() as truths:
        sbc = calibrate(model, x, infer, num_simulations=3, num_samples=8)
    for row, labels, (u, y) in zip(sbc.ranks, seen, truths.pairs, strict=True):
        assert torch.equal(labels, y)
        expected = [sum(bool(draw[0, d, i] < u[0, d, i]) for draw in draws[SITE]) for d in range(2) for i in range(2)]
        assert row.tolist() == expected
    assert len({tuple(row.tolist()) for row in sbc.ranks}) == 3


def test_more_draws_are_thinned_at_equal_distances():
    model, x = conjugate()
    ramp = torch.arange(12.0, dtype=F64).view(12, 1, 1, 1).expand(12, 1, 2, 2) - 5.5
    chain = {SITE: 10 * ramp}  # all but the middle draws lie beyond the truth
    assert (calibrate(model, x, lambda x, y: chain, num_simulations=5, num_samples=12).ranks - 6).abs().max() <= 1
    assert (calibrate(model, x, lambda x, y: chain, num_simulations=5, num_samples=6).ranks - 3).abs().max() <= 1
    assert (calibrate(model, x, lambda x, y: chain, num_simulations=5, num_samples=5).ranks).float().mean() > 2


def test_p_values_are_those_of_scipy_with_bins_of_unequal_size():
    ranks = torch.randint(0, 8, (15, 3))
    sbc = SBC(ranks, ("a", "b", "c"), 7)
    counts, expected = sbc.counts()  # ranks 0–2, 3–5, 6–7
    by_hand = [
        [(ranks[:, k] <= 2).sum(), ((ranks[:, k] > 2) & (ranks[:, k] <= 5)).sum(), (ranks[:, k] > 5).sum()]
        for k in range(3)
    ]
    assert counts.tolist() == [[int(count) for count in row] for row in by_hand]
    assert expected.tolist() == pytest.approx([15 * 3 / 8, 15 * 3 / 8, 15 * 2 / 8])
    reference = [scipy.stats.chisquare(row, expected).pvalue for row in counts.tolist()]
    assert sbc.p_values().tolist() == pytest.approx(reference)
    assert sbc.p_value() == pytest.approx(min(1, 3 * min(reference)))
    assert SBC(ranks[:12], ("a", "b", "c"), 7).counts()[0].shape == (3, 2)
    for simulations in range(10, 70):  # scipy refuses totals that differ in the eighth digit
        assert SBC(torch.randint(0, 50, (simulations, 1)), ("a",), 49).p_values().isfinite().all()


def test_a_mask_reaches_infer():
    model, x = conjugate()
    mask = torch.tensor([[True, True, True], [True, False, False]])
    seen = []

    def watched(*batch):
        seen.append(batch)
        return {SITE: torch.randn(8, 1, 2, 2, dtype=F64)}

    sbc = simulation_based_calibration(model, (x, mask), watched, num_simulations=1, num_samples=4)
    assert sbc.ranks.shape == (1, 4)
    ((inputs, labels, given),) = seen
    assert torch.equal(inputs, x)
    assert given is mask
    assert labels.shape == (2, 3, 2)


def test_what_would_silently_be_wrong_is_refused():
    model, x = conjugate()
    for draws in (torch.zeros(3, 1, 2, 2), torch.zeros(49, 2, 2)):
        with pytest.raises(ValueError, match="draws of network.u have shape"):
            calibrate(model, x, lambda x, y, draws=draws: {SITE: draws})
    with pytest.raises(ValueError, match="site y has scale 2, not 1"):
        calibrate(model, x[:1], exact(model))


@pytest.mark.slow
def test_refitted_full_guides_are_calibrated_and_point_masses_are_not():
    model, x = conjugate()

    def by_guide(family):
        def infer(*batch):
            guide = guides.for_model(model, family)
            refit_guide(model, guide, 20 * [batch], epochs=10)
            return posterior_draws(model, guide, [batch], num_samples=49)

        return infer

    assert calibrate(model, x, by_guide("full"), num_simulations=60).p_value() > 0.01
    assert calibrate(model, x, by_guide("delta"), num_simulations=60).p_value() < 1e-6
