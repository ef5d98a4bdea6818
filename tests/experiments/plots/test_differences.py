"""Figure of paired differences, read back from its artists."""

import numpy as np
import pytest
from matplotlib.colors import same_color

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots.differences import differences, figures
from probattn.experiments.plots.style import BLUE, GREY, ORANGE

METRICS = {"accuracy": DISPLAY["accuracy"], "nll": DISPLAY["nll"]}
SCORES = {
    "base": {seed: {"nll": 0.5 + 0.1 * seed, "accuracy": 0.5 + 0.1 * seed} for seed in range(3)},
    "sure": {seed: {"nll": 0.4 + 0.11 * seed, "accuracy": 0.6 + 0.11 * seed} for seed in range(3)},
    "worse": {seed: {"nll": 0.6 + 0.11 * seed, "accuracy": 0.4 + 0.11 * seed} for seed in range(3)},
    "noise": {seed: {"nll": 0.5 + 0.3 * (seed == 1), "accuracy": 0.6 - 0.2 * (seed == 1)} for seed in range(3)},
    "once": {0: {"nll": 0.1, "accuracy": 0.9}},
}
COMPARED = ["sure", "worse", "noise", "once"]


def table(scores=SCORES, **options):
    return compare(scores, **{"metrics": METRICS, "baselines": dict.fromkeys(COMPARED, "base")} | options)


def points(ax):
    """Return the point of each difference by row."""
    return {line.get_ydata()[0]: line for line in ax.lines if line.get_marker() in ("o", "X")}


def bars(ax):
    found = [line.get_xydata() for line in ax.lines if line.get_marker() == "None"]
    return {each[0, 1]: each[:, 0] for each in found if np.ptp(each[:, 0]) > 0 and np.ptp(each[:, 1]) == 0}


@pytest.mark.parametrize("key", METRICS)
def test_difference_and_interval_of_each_row_stand_in_the_metrics_unit(key):
    (figure,) = figures(table()).values()
    ax = figure.axes[list(METRICS).index(key)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == COMPARED  # the baseline has no row
    scale, cells = METRICS[key].scale, table().cells
    for at, row in enumerate(COMPARED[:3]):
        differences = [SCORES[row][seed][key] - SCORES["base"][seed][key] for seed in range(3)]
        half = 4.302653 * np.std(differences, ddof=1) / np.sqrt(3)  # the 97.5 % quantile of Student's t with 2 degrees
        np.testing.assert_allclose(points(ax)[at].get_xdata(), [scale * np.mean(differences)], rtol=1e-6)
        expected = [scale * (np.mean(differences) - half), scale * (np.mean(differences) + half)]
        np.testing.assert_allclose(bars(ax)[at], expected, rtol=1e-6)
    assert cells["once"][key].low is None
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == [("–", 3)]
    assert any(list(line.get_xdata()) == [0, 0] for line in ax.lines)


def test_colour_and_marker_say_better_worse_or_undecided_whichever_direction_is_better():
    (figure,) = figures(table()).values()
    for ax in figure.axes:
        found = points(ax)
        for at, (colour, marker) in enumerate([(BLUE, "o"), (ORANGE, "X"), (GREY, "o")]):
            assert same_color(found[at].get_color(), colour)
            assert found[at].get_marker() == marker
            assert same_color(found[at].get_markerfacecolor(), colour) == (at < 2)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["better", "worse", "the interval contains 0"]


def test_without_baselines_or_intervals_there_is_no_figure():
    assert figures(table(baselines={})) == {}
    single = {row: {0: seeds[0]} for row, seeds in SCORES.items()}
    assert figures(table(single)) == {}


def test_a_metric_without_an_interval_is_left_out():
    scores = {row: {seed: {**run, "nll": 1.0} for seed, run in seeds.items()} for row, seeds in SCORES.items()}
    assert [ax.get_title("left") for ax in differences(table(scores)).axes] == ["ACC % ↑"]


def test_equal_differences_of_several_seeds_are_a_point_without_a_bar():
    scores = SCORES | {
        "worse": {seed: {**run, "accuracy": run["accuracy"] + 0.05} for seed, run in SCORES["base"].items()}
    }
    (figure,) = figures(table(scores)).values()
    accuracy = figure.axes[0]
    np.testing.assert_allclose(points(accuracy)[1].get_xdata(), [5])
    assert same_color(points(accuracy)[1].get_color(), GREY)
    assert set(bars(accuracy)) == {0, 2}


def test_the_note_names_the_baseline_if_there_is_one():
    (figure,) = figures(table()).values()
    assert figure.get_suptitle().startswith("Difference from base, with its paired 95")
    (figure,) = figures(table(baselines={"sure": "base", "noise": "worse"})).values()
    assert figure.get_suptitle().startswith("Difference from the baseline of each row, ")


def test_more_than_twelve_rows_are_several_figures_or_the_main_ones():
    rng = np.random.default_rng(0)
    names = ["base", *(f"layer {number}" for number in range(14))]
    scores = {name: {seed: {"nll": rng.random()} for seed in range(3)} for name in names}
    many = compare(scores, baselines=dict.fromkeys(names[1:], "base"))
    assert list(figures(many)) == ["", "-2"]
    (figure,) = figures(many, main=names[:5]).values()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == names[1:5]
    assert "10 more rows are in the table" in figure.get_suptitle()
    assert not any("more row" in each.get_suptitle() for each in figures(many).values())
