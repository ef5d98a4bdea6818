"""Figure of a comparison, read back from its artists."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color

from probattn.experiments.evaluation.metric_display import COLUMNS
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots.comparison import panels
from probattn.experiments.plots.style import BLUE, ORANGE, SKY
from probattn.inference.metrics import DISPLAY

METRICS = {"accuracy": DISPLAY["accuracy"], "nll": DISPLAY["nll"]}
SCORES = {
    "softmax": {0: {"accuracy": 0.7, "nll": 0.5}, 1: {"accuracy": 0.8, "nll": math.nan}},
    "kep_$vgp": {0: {"accuracy": 0.9, "nll": 0.3}, 1: {"accuracy": 0.8, "nll": 0.4}},
    "ensemble": {0: {"accuracy": 0.95, "nll": 0.2}},
}
GROUPS = {"Single": ["softmax", "kep_$vgp"], "Several": ["ensemble"]}


def table(**options):
    return compare(SCORES, **{"metrics": METRICS, "baselines": {"kep_$vgp": "softmax"}, "groups": GROUPS} | options)


def lines(ax, *, marker=None, color=None):
    """Return (x, y) of the lines of a panel with that look."""
    found = [line for line in ax.lines if (marker or "None") == line.get_marker()]
    if color:
        found = [line for line in found if same_color(line.get_markerfacecolor(), color)]
    return [line.get_xydata() for line in found]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_means_spreads_seeds_and_baselines_stand_where_they_should():
    figure = panels(table())
    accuracy, nll = figure.axes
    assert [ax.get_title("left") for ax in figure.axes] == ["ACC % ↑", "NLL ×10 ↓"]
    labels = [label.get_text() for label in accuracy.get_yticklabels()]
    assert labels == ["Single", "softmax", r"kep_\$vgp", "Several", "ensemble"]
    assert list(accuracy.get_yticks()) == [0, 1, 2, 3, 4]
    assert accuracy.get_ylim()[0] > accuracy.get_ylim()[1]  # read from the top
    np.testing.assert_allclose(lines(accuracy, marker="o", color=BLUE), [[[75, 1]], [[95, 4]]])
    np.testing.assert_allclose(lines(accuracy, marker="D", color=ORANGE), [[[85, 2]]])
    seeds = lines(accuracy, marker="o", color=SKY)
    assert [sorted(dots[:, 0]) for dots in seeds] == [pytest.approx([70, 80]), pytest.approx([80, 90])]
    assert all(0 < dots[0, 1] - at < 0.5 for dots, at in zip(seeds, (1, 2), strict=True))  # below their mean
    std = 10 / math.sqrt(2)
    bars = [bar for bar in lines(accuracy) if np.ptp(bar[:, 0]) > 0]
    np.testing.assert_allclose(bars, [[[75 - std, 1], [75 + std, 1]], [[85 - std, 2], [85 + std, 2]]])
    upright = [bar for bar in lines(accuracy) if np.ptp(bar[:, 1]) > 0]
    np.testing.assert_allclose(upright, [[[75, 1.5], [75, 2.5]]])  # softmax' mean, across the row of kep
    assert [(text.get_text(), text.get_position()[1]) for text in nll.texts] == [("–", 1)]
    assert legend(figure) == ["mean ± std", "each seed", "best of its group", "mean of the baseline"]


def test_without_seeds_groups_and_baselines_the_legend_says_less():
    figure = panels(compare({"a": {0: {"nll": 1.0}}, "b": {0: {"nll": 2.0}}}))
    assert legend(figure) == ["one seed", "best"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]


def test_a_metric_that_no_row_has_is_left_out():
    scores = {"a": {0: {"accuracy": 0.5, "nll": math.nan}}}
    figure = panels(compare(scores, metrics=METRICS))
    assert [ax.get_title("left") for ax in figure.axes] == ["ACC % ↑"]
    assert panels(compare({"a": {0: {"nll": math.nan}}})) is None


@pytest.mark.parametrize("rows", [1, 25])
def test_every_label_lies_inside_the_figure_and_apart_from_the_others(rows):
    rng = np.random.default_rng(0)
    scores = {
        f"digits/a-layer-of-some-name-{row} + temperature scaling": {
            seed: {key: float(rng.random()) for key in COLUMNS} for seed in range(3)
        }
        for row in range(rows)
    }
    figure = panels(compare(scores))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    first = figure.axes[0]
    boxes = [label.get_window_extent(renderer) for label in first.get_yticklabels()]
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
    assert all(above.y0 >= below.y1 - 1 for above, below in zip(boxes, boxes[1:], strict=False))
    titles = [ax.title if ax.get_title() else ax._left_title for ax in figure.axes if ax.axison]
    assert len(titles) == len(COLUMNS)
    extents = [title.get_window_extent(renderer) for title in titles]
    assert not any(a.overlaps(b) for at, a in enumerate(extents) for b in extents[at + 1 :])
