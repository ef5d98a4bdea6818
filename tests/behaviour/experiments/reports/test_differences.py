"""Figure of paired differences, read back from its artists."""

import numpy as np
import pytest

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots.differences import differences

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


def test_without_an_interval_there_is_no_figure():
    assert differences(comparison({row: SCORES[row] for row in ("base", "other seed")})) is None
    assert differences(compare({"base": SCORES["base"]})) is None
