"""Figures of posterior checks, read back from their artists."""

import math

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color
from scipy.stats import binom

from probattn.experiments.plots.posterior_check import against_nuts, importance_weights, rank_histograms
from probattn.experiments.plots.style import BLUE, INK, ORANGE
from probattn.experiments.studies.compare_posteriors import PosteriorComparison, SiteComparison
from probattn.inference.diagnostics.psis import PSIS
from probattn.inference.diagnostics.sbc import SBC


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def site(guide, name, offset=0.0):
    reference = torch.arange(6.0).reshape(1, 2, 3)
    return SiteComparison(guide, name, reference + offset, 0.5 + 0 * reference, reference, 1 + 0 * reference, 0.1)


def comparison(distances=(0.02, 0.4)):
    names = ("full", "_delta$")
    sites = tuple(site(guide, name, k) for k, guide in enumerate(names) for name in ("network.0.u", "network.1.f"))
    return PosteriorComparison(sites, dict(zip(names, distances, strict=True)))


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return [ax for ax in figure.axes if ax.axison]


def points(ax):
    return [line for line in ax.lines if line.get_linestyle() == "None"]


def test_every_scalar_stands_at_the_reference_and_the_guide():
    axes = drawn(against_nuts(comparison()))
    assert [ax.get_title("left") for ax in axes if "of" in ax.get_title("left")] == [
        f"{moment} of {name}" for name in ("0.u", "1.f") for moment in ("mean", "std")
    ]
    first, second = points(axes[0])
    assert np.array_equal(first.get_xydata(), [[k, k] for k in range(6)])
    assert np.array_equal(second.get_xydata(), [[k, k + 1] for k in range(6)])
    assert same_color(first.get_markeredgecolor(), BLUE)
    assert same_color(second.get_markeredgecolor(), ORANGE)
    assert first.get_marker() != second.get_marker()
    assert np.array_equal(points(axes[1])[0].get_xydata(), [[1, 0.5]] * 6)
    assert axes[0].get_xlim() == axes[0].get_ylim()
    assert axes[0].get_xlim()[0] < 0
    assert axes[0].get_xlim()[1] > 6


def test_predictive_distances_have_the_guides_colours():
    axes = drawn(against_nuts(comparison()))
    bars = next(ax for ax in axes if ax.patches)
    assert [bar.get_width() for bar in bars.patches] == [0.02, 0.4]
    assert [same_color(bar.get_facecolor(), colour) for bar, colour in zip(bars.patches, (BLUE, ORANGE), strict=True)]
    assert [text.get_text() for text in bars.texts] == ["0.02", "0.4"]
    assert len(axes) == 5


def test_without_a_predictive_there_is_no_panel_for_it():
    assert len(drawn(against_nuts(comparison((math.nan, math.nan))))) == 4
    bars = next(ax for ax in drawn(against_nuts(comparison((0.1, math.nan)))) if ax.patches)
    assert [bar.get_width() for bar in bars.patches] == [0.1, 0]
    assert [text.get_text() for text in bars.texts] == ["0.1", "nan"]


def test_the_legend_names_every_guide_as_it_is():
    (legend,) = against_nuts(comparison()).legends
    assert [text.get_text() for text in legend.get_texts()] == ["full", r" _delta\$"]


def sbc(scalars=2, simulations=100):
    ranks = torch.randint(0, 10, (simulations, scalars))
    ranks[:, -1] = 0
    return SBC(ranks, tuple(f"network.u[{k}]" for k in range(scalars)), 9)


def test_counts_of_ranks_and_their_band():
    result = sbc()
    figure = rank_histograms(result)
    axes = drawn(figure)
    assert [ax.get_title("left").split(":")[0] for ax in axes] == ["u[1]", "u[0]"]  # the smallest p-value first
    band, counts, expected = axes[1].patches
    assert np.array_equal(counts.get_data().values, torch.bincount(result.ranks[:, 0], minlength=10))
    assert np.allclose(counts.get_data().edges, np.arange(11) / 10)
    assert np.allclose(expected.get_data().values, 10)
    low, high = binom.interval(0.99, 100, 0.1)
    assert np.allclose(band.get_data().values, high)
    assert np.allclose(band.get_data().baseline, low)
    assert axes[0].get_ylim()[1] > 100
    assert "100 simulations, all scalars" in figure.get_suptitle()


def test_at_most_twelve_panels_of_the_worst():
    figure = rank_histograms(sbc(14))
    assert len(drawn(figure)) == 12
    assert "12 of 14 scalars" in figure.get_suptitle()
    assert figure.axes[0].get_title("left").startswith("u[13]")


def weights(khat=0.9):
    log_weights = torch.tensor([1.0, 3.0, 2.0, -20.0], dtype=torch.float64)
    return PSIS(khat, log_weights, log_weights.log_softmax(0))


def test_ratios_are_sorted_and_centred_at_their_mean():
    figure = importance_weights(weights())
    left, right = drawn(figure)
    raw, smoothed = left.lines[:2]
    ratios = np.exp([3.0, 2.0, 1.0, -20.0])
    assert np.allclose(raw.get_xdata(), [1, 2, 3, 4])
    assert np.allclose(raw.get_ydata(), np.log(ratios / ratios.mean()))
    assert np.allclose(smoothed.get_ydata(), raw.get_ydata())
    assert np.allclose(right.lines[0].get_ydata(), np.cumsum(ratios) / ratios.sum())
    assert np.allclose(right.lines[1].get_ydata(), [0.25, 0.5, 0.75, 1])
    assert left.get_ylim()[1] > raw.get_ydata().max()
    assert left.get_ylim()[0] > -23


@pytest.mark.parametrize(("khat", "colour"), [(0.9, ORANGE), (0.6, INK), (-math.inf, INK)])
def test_the_title_says_khat_and_its_threshold(khat, colour):
    figure = importance_weights(weights(khat))
    assert figure.get_suptitle().startswith(f"k̂ = {khat:.2f} (good below 0.7); 2 effective of 4 draws")
    assert same_color(figure._suptitle.get_color(), colour)


def test_equal_ratios_can_be_drawn():
    even = PSIS(-math.inf, torch.full((10,), -3.0), torch.full((10,), -math.log(10)))
    left, right = drawn(importance_weights(even))
    assert np.allclose(left.lines[0].get_ydata(), 0)
    assert np.allclose(right.lines[0].get_ydata(), np.arange(1, 11) / 10)
