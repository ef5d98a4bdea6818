"""Figures, read back from their artists."""

import numpy as np
import pytest
import torch
from evaluated_runs import score_frame
from pyro.distributions import Normal

from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots import model_diagnostics, prediction_figures
from probattn.experiments.plots.differences import differences
from probattn.inference import Prediction
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.metrics import OF_CLASSES

CONFIDENCE = torch.tensor([0.95, 0.95, 0.75, 0.55])
PROBS = torch.stack([CONFIDENCE, 1 - CONFIDENCE], 1).double()
LABELS = torch.tensor([0, 1, 0, 1])  # right, wrong, right, wrong
TEST = Prediction(probs=PROBS, labels=LABELS)


def test_reliability_bars_are_accuracy_and_the_gap_to_confidence():
    top, below = prediction_figures.reliability(TEST).axes
    accuracy, gap = top.containers
    assert [bar.get_height() for bar in accuracy] == [0, 1, 0.5]
    ends = [bar.get_y() + bar.get_height() for bar in gap]
    assert ends == pytest.approx([0.55, 0.75, 0.95])
    assert [bar.get_height() for bar in below.patches] == [1, 1, 2]


def test_similarity_stands_against_the_depth_of_the_layer():
    (ax,) = model_diagnostics.similarity({"run": {"0": 0.25, "1": 0.5}}).axes
    assert ax.lines[0].get_xydata().tolist() == [[1, 0.25], [2, 0.5]]


def decaying(rates):
    """Spectra of layers whose singular values decay by these rates."""
    values = [torch.tensor([[rate**place for place in range(5)]]) for rate in rates]
    nothing = torch.zeros(0)
    return {f"{n}": Spectrum(value, nothing, nothing, nothing) for n, value in enumerate(values)}


def share(rate):
    """Share of the first 1, …, 5 terms of a geometric series in all five."""
    return [(1 - rate**number) / (1 - rate**5) for number in range(1, 6)]


def test_each_of_few_layers_has_a_line_of_its_rank():
    (ax,) = model_diagnostics.spectrum({"run": decaying([0.5, 0.9])}).axes
    for line, rate in zip(ax.lines, [0.5, 0.9], strict=False):
        assert line.get_ydata() == pytest.approx(share(rate), abs=1e-6)
    assert not ax.collections


def test_heads_of_zeros_are_left_out_and_layers_may_have_other_numbers_of_tokens():
    nothing = torch.zeros(0)
    values = {"a": [[1.0, 1, 0], [0, 0, 0]], "b": [[1.0, 1, 1, 1]], "none": [[0.0, 0]]}
    spectra = {
        name: Spectrum(torch.tensor(rows), nothing, nothing, nothing)
        for name, rows in values.items()
    }
    (ax,) = model_diagnostics.spectrum({"run": spectra}).axes
    one, other, _ = ax.lines
    assert one.get_ydata()[:3].tolist() == [0.5, 1, 1]
    assert other.get_ydata().tolist() == [0.25, 0.5, 0.75, 1]
    assert model_diagnostics.spectrum({"run": {"none": spectra["none"]}}) is None


@pytest.mark.parametrize("others", [{}, {"other": [0.3, 0.4, 0.6]}])
def test_many_layers_are_a_median_and_a_range_for_each_run(others):
    rates = [0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95]
    runs = {"run": rates, **others}
    drawn = {name: decaying(of_run) for name, of_run in runs.items()}
    (ax,) = model_diagnostics.spectrum(drawn).axes
    assert len(ax.collections) == len(runs)
    for line, band, of_run in zip(ax.lines, ax.collections, runs.values(), strict=False):
        assert line.get_ydata() == pytest.approx(share(np.median(of_run)), abs=1e-6)
        (outline,) = band.get_paths()
        for rate in (of_run[0], of_run[-1]):
            for point in enumerate(share(rate), 1):
                distance = np.abs(outline.vertices - point).max(axis=1)
                assert distance.min() < 1e-6


def test_predicted_numbers_stand_against_the_true_ones_with_their_quantiles():
    loc, labels = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.5], [2.0], [3.0]])
    law = Normal(loc.expand(2, 3, 1), torch.ones(2, 3, 1)).to_event(1)
    prediction = Prediction(mean=loc, variance=torch.ones(3, 1), labels=labels, components=(law,))
    (ax,) = prediction_figures.predicted(prediction).axes
    assert ax.lines[0].get_xydata().tolist() == [[1.5, 1], [2, 2], [3, 4]]
    segments = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(np.ptp(segments[:, :, 1], axis=1), 2 * 1.6448536, rtol=1e-5)
    (ax,) = prediction_figures.quantiles(prediction).axes
    shares = dict(ax.lines[1].get_xydata().round(4).tolist())
    assert shares[0.1] == pytest.approx(0)  # z = 0.5, 0 and -1: Φ = 0.69, 0.5 and 0.16
    assert [shares[level] for level in (0.2, 0.6, 0.7)] == pytest.approx(
        [1 / 3, 2 / 3, 1], abs=1e-4
    )


def test_the_axes_of_numbers_far_from_zero_show_these_numbers():
    labels = torch.linspace(1000, 1010, 11)[:, None]
    law = Normal(labels.expand(2, 11, 1), torch.ones(2, 11, 1)).to_event(1)
    prediction = Prediction(
        mean=labels, variance=torch.ones(11, 1), labels=labels, components=(law,)
    )
    (ax,) = prediction_figures.predicted(prediction).axes
    for low, high in (ax.get_xlim(), ax.get_ylim()):
        assert 990 < low <= 1000
        assert 1010 <= high < 1020


def test_difference_and_interval_of_each_row_stand_in_the_metrics_unit():
    display = {key: OF_CLASSES[key] for key in ("accuracy", "nll")}
    factors = {"base": 1.0, "low": 0.8, "high": 1.3}
    scores = {
        row: {n: dict.fromkeys(display, factors[row] * (4 + n) / 10) for n in range(3)}
        for row in factors
    }
    scores["alone"] = {7: dict.fromkeys(display, 0.5)}  # shares no seed with the baseline
    _, *rows = scores  # the baseline has no row
    comparison = compare(
        score_frame(scores), metrics=display, baselines=dict.fromkeys(rows, "base")
    )
    axes = differences(comparison).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == rows
    for ax, (key, metric) in zip(axes, display.items(), strict=True):
        drawn = [(line.get_xdata() / metric.scale, *line.get_ydata()) for line in ax.lines[-4:]]
        cells = [(place, comparison.cells[row][key]) for place, row in enumerate(("low", "high"))]
        expected = [
            row
            for place, c in cells
            for row in (([c.difference], place), ([c.low, c.high], place, place))
        ]
        for (x, *y), (values, *places) in zip(drawn, expected, strict=True):
            assert (x.tolist(), y) == (pytest.approx(values), places)
