"""Calibration and risk–coverage figures: numbers read back from the axes are those of the metrics."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from probattn.experiments.plots import predictions
from probattn.inference import metrics


def heights(container):
    return [bar.get_height() for bar in container]


def test_reliability_bars_are_the_accuracies_of_the_bins():
    edge = float(np.linspace(0, 1, 16)[9])  # 0.6, belongs to the bin that it opens
    confidence = torch.tensor([0.55, 0.58, edge, 0.95, 0.97, 1.0], dtype=torch.float64)  # bins 8 8 9 14 14 14
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.tensor([0, 1, 0, 0, 0, 1])
    top, below = predictions.reliability(probs, labels).axes
    accuracy, gap = top.containers
    assert heights(accuracy) == pytest.approx([1 / 2, 1, 2 / 3])
    assert [bar.get_x() + bar.get_width() / 2 for bar in accuracy] == pytest.approx([8.5 / 15, 9.5 / 15, 14.5 / 15])
    assert [bar.get_y() for bar in gap] == pytest.approx([1 / 2, 1, 2 / 3])
    means = [0.565, 0.60, 2.92 / 3]
    assert [bar.get_y() + bar.get_height() for bar in gap] == pytest.approx(means)
    assert heights(below.containers[0]) == [2, 1, 3]
    error = (2 * (0.565 - 0.5) + (1 - 0.6) + 3 * (2.92 - 2) / 3) / 6
    assert top.get_title("left") == f"Reliability: ECE {100 * error:.2f} %"


def test_reliability_title_agrees_with_the_metric(result):
    run = result(n=400)
    title = predictions.reliability(run.probs, run.labels).axes[0].get_title("left")
    assert title == f"Reliability: ECE {100 * run.metrics['ece']:.2f} %"


def test_risk_coverage_lines_are_the_metric_and_the_best_ranking(result):
    first, second = result(), result(seed=3)
    runs = {"one": (first.probs, first.labels), "two": (second.probs, second.labels)}
    figure = predictions.risk_coverage(runs)
    lines = figure.axes[0].lines
    for (probs, labels), line, ideal in zip(runs.values(), lines[0:4:2], lines[1:4:2], strict=True):
        coverage, risk = metrics.risk_coverage(probs, labels)
        np.testing.assert_allclose(line.get_xdata(), coverage)
        np.testing.assert_allclose(line.get_ydata(), risk)
        # right answers first, by hand
        right = int((probs.argmax(-1) == labels).sum())
        best = [max(0, kept - right) / kept for kept in range(1, len(labels) + 1)]
        np.testing.assert_allclose(ideal.get_ydata(), best, atol=1e-12)
        assert ideal.get_ydata()[-1] == pytest.approx(risk[-1].item())
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names[:2] == ["one", "two"]
    assert lines[0].get_color() != lines[2].get_color()


def test_confidence_histograms_are_shares_of_right_and_of_wrong():
    confidence = torch.tensor([0.52, 0.97, 0.98, 0.99, 0.61])
    probs = torch.stack([confidence, 1 - confidence], 1)
    right, wrong = predictions.confidence(probs, torch.tensor([0, 0, 0, 0, 1])).axes
    assert right.get_title("left") == "4 right answers"
    assert wrong.get_title("left") == "1 wrong answer"
    shares = heights(right.patches)
    assert (shares[10], shares[19], sum(shares)) == pytest.approx((0.25, 0.75, 1))
    assert heights(wrong.patches)[12] == pytest.approx(1)
    assert to_hex(right.patches[0].get_facecolor()) != to_hex(wrong.patches[0].get_facecolor())


def test_without_answers_there_is_no_figure():
    empty = torch.empty(0, 2), torch.empty(0, dtype=torch.long)
    assert predictions.reliability(*empty) is None
    assert predictions.confidence(*empty) is None
    assert predictions.risk_coverage({"run": empty}) is None
