"""Simulation-based calibration: exact inference is uniform, wrong inference is found."""

import pytest
import scipy.stats
import torch
from conjugate import F64, SITE, conjugate, posterior
from float64 import randn64
from pyro.poutine.messenger import Messenger

from probattn.inference.diagnostics.sbc import SBC, simulation_based_calibration


def exact(model, *, shift=0.0, spread=1.0):
    """The closed-form posterior, its mean moved by ``shift`` and its draws ``spread`` times as
    wide."""

    def infer(x, y):
        mean, covariance = posterior(model, x, y)
        noise = randn64(49, 1, 2, 2) @ torch.linalg.cholesky(covariance).T
        return {SITE: mean + shift * covariance.diag().sqrt() + spread * noise}

    return infer


def calibrate(model, x, infer, **options):
    return simulation_based_calibration(
        model, x, infer, **{"num_simulations": 150, "num_samples": 49} | options
    )


@pytest.fixture
def model_and_inputs():
    return conjugate(num_data=2)[:2]


def test_the_exact_posterior_is_calibrated(model_and_inputs):
    sbc = calibrate(*model_and_inputs, exact(model_and_inputs[0]))
    assert sbc.ranks.shape == (150, 4)
    assert sbc.names == tuple(f"{SITE}[0, {d}, {i}]" for d in range(2) for i in range(2))
    assert sbc.p_value() > 5.7e-7  # five standard errors
    assert sbc.ranks.double().mean(0).sub(24.5).abs().max() < 5 * 14.4 / 150**0.5


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        ({"spread": 0.5}, lambda counts: counts[:, [0, -1]].sum() > 1.5 * counts[:, 9:11].sum()),
        ({"spread": 2.0}, lambda counts: counts[:, [0, -1]].sum() < 0.7 * counts[:, 9:11].sum()),
        ({"shift": 0.7}, lambda counts: counts[:, :10].sum() > 1.5 * counts[:, 10:].sum()),
    ],
)
def test_wrong_posteriors_are_found_by_their_shapes(model_and_inputs, wrong, shape):
    sbc = calibrate(*model_and_inputs, exact(model_and_inputs[0], **wrong))
    assert sbc.p_value() < 1e-3
    assert shape(sbc.counts()[0])


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


def test_ranks_are_counts_of_draws_below_the_truth(model_and_inputs):
    model, x = model_and_inputs
    draws = randn64(8, 1, 2, 2)
    mask = torch.ones(2, 4, dtype=torch.bool)
    batches = []

    def infer(*batch):
        batches.append(batch)
        return {SITE: draws}

    with Truths() as truths:
        sbc = calibrate(model, (x, mask), infer, num_simulations=3, num_samples=8)
    for row, (inputs, labels, given_mask), (u, y) in zip(
        sbc.ranks, batches, truths.pairs, strict=True
    ):
        assert torch.equal(inputs, x)
        assert torch.equal(labels, y)
        assert given_mask is mask
        expected = [
            sum(bool(draw[0, d, i] < u[0, d, i]) for draw in draws)
            for d in range(2)
            for i in range(2)
        ]
        assert row.tolist() == expected
    assert len({tuple(row.tolist()) for row in sbc.ranks}) == 3


@pytest.mark.parametrize("num_samples", [12, 6])
def test_more_draws_are_thinned_at_equal_distances(model_and_inputs, num_samples):
    ramp = torch.arange(12.0, dtype=F64).view(12, 1, 1, 1).expand(12, 1, 2, 2) - 5.5
    chain = {SITE: 10 * ramp}  # all but the middle draws lie beyond the truth
    ranks = calibrate(
        *model_and_inputs, lambda x, y: chain, num_simulations=5, num_samples=num_samples
    ).ranks
    assert (ranks - num_samples // 2).abs().max() <= 1


def test_p_values_are_those_of_scipy_with_bins_of_unequal_size():
    ranks = torch.randint(0, 8, (15, 3))
    sbc = SBC(ranks, ("a", "b", "c"), 7)
    counts, expected = sbc.counts()  # ranks 0–2, 3–5, 6–7
    assert counts.tolist() == [
        [sum(column // 3 == b).item() for b in range(3)] for column in ranks.T
    ]
    assert expected.tolist() == pytest.approx([15 * 3 / 8, 15 * 3 / 8, 15 * 2 / 8])
    reference = [scipy.stats.chisquare(row, expected).pvalue for row in counts.tolist()]
    assert sbc.p_values().tolist() == pytest.approx(reference)
    assert sbc.p_value() == pytest.approx(min(1, 3 * min(reference)))
    for simulations in range(
        10, 70
    ):  # SciPy has an error for totals that differ in the eighth digit
        assert SBC(torch.randint(0, 50, (simulations, 1)), ("a",), 49).p_values().isfinite().all()


def test_draws_of_another_shape_and_scaled_likelihoods_are_errors(model_and_inputs):
    model, x = model_and_inputs
    for draws in (torch.zeros(3, 1, 2, 2), torch.zeros(49, 2, 2)):
        with pytest.raises(ValueError, match="shape"):
            calibrate(model, x, lambda x, y, draws=draws: {SITE: draws})
    with pytest.raises(ValueError, match="scale 2"):
        calibrate(model, x[:1], exact(model))
