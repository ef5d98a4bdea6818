"""Figures, read back from their artists."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from pyro.distributions import Normal

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots import prediction_figures, style
from probattn.experiments.plots.differences import differences
from probattn.inference import Prediction

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


def test_any_name_is_visible_text():
    names = ("\x01", "\x1b[31mred\x1b[0m", "\u202edcba", "\udcff", "a\nb\r\x85c", "\ufffe", "_$x$ \\ _^{}%&#~<>|`*")
    drawn = style.to_svg(prediction_figures.risk_coverage(dict.fromkeys(names, TEST))).decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff\ufffe]", drawn)
    ElementTree.fromstring(drawn)


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
    assert [shares[level] for level in (0.2, 0.6, 0.7)] == pytest.approx([1 / 3, 2 / 3, 1], abs=1e-4)


METRICS = {"accuracy": DISPLAY["accuracy"], "nll": DISPLAY["nll"]}
SCORES = {
    "base": {seed: {"nll": 0.5 + 0.1 * seed, "accuracy": 0.5 + 0.1 * seed} for seed in range(3)},
    "better": {seed: {"nll": 0.4 + 0.11 * seed, "accuracy": 0.6 + 0.11 * seed} for seed in range(3)},
    "worse": {seed: {"nll": 0.6 + 0.11 * seed, "accuracy": 0.4 + 0.11 * seed} for seed in range(3)},
    "noise": {seed: {"nll": 0.5 + 0.3 * (seed == 1), "accuracy": 0.6 - 0.2 * (seed == 1)} for seed in range(3)},
    "other seed": {7: {"nll": 0.1, "accuracy": 0.9}},
}
ROWS = ["better", "worse", "noise", "other seed"]


def comparison(scores=SCORES):
    return compare(scores, metrics=METRICS, baselines={row: "base" for row in ROWS if row in scores})


@pytest.mark.parametrize("key", METRICS)
def test_difference_and_interval_of_each_row_stand_in_the_metrics_unit(key):
    figure = differences(comparison())
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ROWS  # the baseline has no row
    ax, metric = figure.axes[list(METRICS).index(key)], METRICS[key]
    points = {
        line.get_ydata()[0]: line for line in ax.lines if line.get_marker() in ("o", "X") and len(line.get_xdata())
    }
    bars = {line.get_ydata()[0]: line for line in ax.lines if len(set(line.get_xdata())) == 2}
    for place, row in enumerate(ROWS[:3]):
        values = [SCORES[row][seed][key] - SCORES["base"][seed][key] for seed in range(3)]
        half = 4.302653 * np.std(values, ddof=1) / np.sqrt(3)  # the 97.5 % quantile of Student's t with 2 degrees
        ends = [metric.scale * (np.mean(values) + sign * half) for sign in (-1, 1)]
        np.testing.assert_allclose(points[place].get_xdata(), [metric.scale * np.mean(values)], rtol=1e-6)
        np.testing.assert_allclose(bars[place].get_xdata(), ends, rtol=1e-6)
    assert set(points) == {0, 1, 2}  # no seed of the last row is shared
