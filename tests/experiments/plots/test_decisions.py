"""Figures of decisions, read back from their artists."""

import math

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

from probattn.experiments.plots.decisions import DODGE, abstention, set_sizes
from probattn.inference.decisions.abstention import RiskThreshold


def answers(confidence, right):
    confidence = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([confidence, 1 - confidence], dim=1), 1 - torch.tensor(right, dtype=torch.long)


VALID = answers([0.9, 0.8, 0.7, 0.6], [True, True, False, True])
TEST = answers([0.95, 0.85, 0.75, 0.65, 0.55], [True, False, True, True, False])


def chosen(confidence, bound, coverage, *, target, delta):
    threshold = RiskThreshold(target=target, delta=delta)
    threshold.confidence, threshold.bound, threshold.coverage, threshold.fitted = confidence, bound, coverage, True
    return threshold


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def dots(ax):
    return [line.get_xydata()[0].tolist() for line in ax.lines if line.get_marker() == "o" and len(line.get_xydata())]


def bars(ax):
    return [line.get_ydata().tolist() for line in ax.lines if line.get_marker() == "_"]


def test_the_threshold_stands_on_both_curves_with_its_bound_and_interval():
    threshold = chosen(0.7, 0.62, 0.75, target=0.6, delta=0.1)
    figure = abstention(threshold, VALID, TEST)
    ax = figure.axes[0]
    curves = {line.get_label(): line.get_xydata() for line in ax.lines if len(line.get_xydata()) > 2}
    np.testing.assert_allclose(curves["validation"], [[0.25, 0], [0.5, 0], [0.75, 1 / 3], [1, 1 / 4]])
    np.testing.assert_allclose(curves["test"], [[0.2, 0], [0.4, 1 / 2], [0.6, 1 / 3], [0.8, 1 / 4], [1, 2 / 5]])
    np.testing.assert_allclose(dots(ax), [[0.75 - DODGE, 1 / 3], [0.6 + DODGE, 1 / 3]])
    exact = stats.binomtest(1, 3).proportion_ci(0.9, method="exact")
    np.testing.assert_allclose(bars(ax), [[1 / 3, 0.62], [exact.low, exact.high]])
    assert [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == "--"] == [0.6]
    assert texts(figure)[:3] == ["validation", "test", "target, 60 %"]
    assert ax.get_title("left") == "answers with confidence ≥ 0.7"
    assert ax.get_ylim()[1] >= exact.high


def test_abstaining_from_everything_is_said():
    figure = abstention(chosen(math.inf, 1.0, 0.0, target=0.01, delta=0.05), VALID, TEST)
    ax = figure.axes[0]
    assert ax.get_title("left").startswith("abstains from everything")
    assert dots(ax) == bars(ax) == []
    assert texts(figure) == ["validation", "test", "target, 1 %"]


def test_sizes_and_coverage_of_sets():
    sets = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
    other = torch.tensor([[1, 0, 0]] * 4, dtype=torch.bool)
    labels = torch.tensor([0, 2, 1, 1])
    figure = set_sizes({"plain": (sets, labels), "adaptive": (other, labels)}, alpha=0.1)
    ax = figure.axes[0]
    first, second = (list(container) for container in ax.containers)
    assert [bar.get_height() for bar in first] == [0.25, 0.25, 0.25, 0.25]
    assert [bar.get_height() for bar in second] == [0, 1]
    centres = [[bar.get_x() + bar.get_width() / 2 for bar in bars] for bars in (first, second)]
    np.testing.assert_allclose(centres[0], np.arange(4) - 0.2)
    np.testing.assert_allclose(centres[1], np.arange(2) + 0.2)
    assert texts(figure) == [
        "plain: 50.0 % covered, mean size 1.50",
        "adaptive: 25.0 % covered, mean size 1.00",
    ]
    assert ax.get_title("left") == "Sets that promise 90 %"


@pytest.mark.parametrize("count", [1, 5])
def test_legends_lie_inside_the_figure(count):
    sets = torch.ones(3, 4, dtype=torch.bool)
    methods = {
        f"{n} a rather long name of a run, with adaptive sets": (sets, torch.zeros(3).long()) for n in range(count)
    }
    threshold = chosen(0.7, 0.62, 0.75, target=0.6, delta=0.1)
    for figure in (set_sizes(methods, alpha=0.05), abstention(threshold, VALID, TEST)):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        box = figure.legends[0].get_window_extent(canvas.get_renderer())
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
