"""Figure of a comparison, read back from its artists."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color

from probattn.experiments.evaluation.metric_display import COLUMNS, DISPLAY
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots.comparison import figures, panels
from probattn.experiments.plots.style import BLUE, ORANGE, SKY

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
    assert [(text.get_text(), text.get_position()[1]) for text in nll.texts if not text.get_text()[-1].isdigit()] == [
        ("–", 1)
    ]
    assert legend(figure) == ["mean ± std", "each seed", "best of its group", "mean of the baseline"]


def test_without_seeds_groups_and_baselines_the_legend_says_less():
    figure = panels(compare({"a": {0: {"nll": 1.0}}, "b": {0: {"nll": 2.0}}}))
    assert legend(figure) == ["one value", "best"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]


def test_a_metric_that_no_row_has_is_left_out():
    scores = {"a": {0: {"accuracy": 0.5, "nll": math.nan}}}
    figure = panels(compare(scores, metrics=METRICS))
    assert [ax.get_title("left") for ax in figure.axes] == ["ACC % ↑"]
    assert panels(compare({"a": {0: {"nll": math.nan}}})) is None


def many(layers, methods=("", " + temperature scaling", " + MC dropout"), metrics=COLUMNS, seeds=3):
    """Layers by methods, and the ensembles of the layers."""
    rng = np.random.default_rng(0)
    single = [f"digits/a-layer-of-some-name-{layer}{method}" for layer in range(layers) for method in methods]
    ensembles = [f"digits/a-layer-of-some-name-{layer}, ensemble of {seeds}" for layer in range(layers)]
    scores = {row: {seed: {key: float(rng.random()) for key in metrics} for seed in range(seeds)} for row in single}
    scores |= {row: {0: {key: float(rng.random()) for key in metrics}} for row in ensembles}
    baselines = dict.fromkeys(single[1:], single[0])
    return compare(scores, groups={"single models": single, "ensembles": ensembles}, baselines=baselines)


def rows_of(figure):
    labels = figure.axes[0].get_yticklabels()
    return [label.get_text().replace("\n", " ") for label in labels if label.get_style() == "normal"]


def test_twelve_rows_fit_into_one_figure_and_of_more_the_main_ones_are_drawn():
    assert list(figures(many(3))) == [""]
    table = many(5)
    main = [row for row in table.rows if " + " not in row]
    (figure,) = figures(table, main=main).values()
    assert rows_of(figure) == main
    assert "10 more rows are in the table" in figure.get_suptitle()
    assert "more row" not in figures(many(3))[""].get_suptitle()


@pytest.mark.parametrize("layers", [1, 4, 7, 14])
def test_no_figure_has_more_than_twelve_rows_and_each_main_row_is_in_one(layers):
    table = many(layers)
    for main in ([row for row in table.rows if " + " not in row], []):
        drawn = figures(table, main=main)
        assert list(drawn) == ["", *(f"-{number}" for number in range(2, len(drawn) + 1))]
        rows = [rows_of(figure) for figure in drawn.values()]
        assert all(1 <= len(each) <= 12 for each in rows)
        assert sorted(row for each in rows for row in each) == sorted(
            main if main and len(table.rows) > 12 else table.rows
        )


def test_the_best_of_the_rows_drawn_is_marked_with_its_value():
    table = many(7, metrics=["nll"])
    main = [row for row in table.rows if row.endswith("-0") or row.endswith("-3")]
    (ax,) = figures(table, main=main)[""].axes
    best = min(main, key=lambda row: table.cells[row]["nll"].mean)
    (diamond,) = lines(ax, marker="D")
    np.testing.assert_allclose(diamond, [[10 * table.cells[best]["nll"].mean, 1 + main.index(best)]])
    (value,) = [text for text in ax.texts if text.get_weight() == "bold"]
    assert value.get_text() == f"{10 * table.cells[best]['nll'].mean:.2f}"


def test_an_interval_that_excludes_0_is_marked_as_better_or_worse():
    scores = {
        "base": {seed: {"nll": 0.5 + 0.1 * seed, "accuracy": 0.5 + 0.1 * seed} for seed in range(3)},
        "sure": {seed: {"nll": 0.4 + 0.101 * seed, "accuracy": 0.6 + 0.101 * seed} for seed in range(3)},
        "worse": {seed: {"nll": 0.6 + 0.101 * seed, "accuracy": 0.4 + 0.101 * seed} for seed in range(3)},
        "noise": {seed: {"nll": 0.5 + 0.3 * (seed == 1), "accuracy": 0.6} for seed in range(3)},
    }
    baselines = dict.fromkeys(["sure", "worse", "noise"], "base")
    figure = panels(compare(scores, metrics=METRICS, baselines=baselines))
    for ax in figure.axes:
        marks = {text.get_position()[1]: text.get_text() for text in ax.texts if text.get_text() in "✓✗"}
        assert marks == {1: "✓", 2: "✗"}
    assert "✓ better, ✗ worse" in figure.get_suptitle()
    assert "✓" not in panels(table()).get_suptitle()


@pytest.mark.parametrize("count", range(1, len(COLUMNS) + 1))
def test_no_panel_is_blank(count):
    figure = panels(many(2, metrics=COLUMNS[:count]))
    assert len(figure.axes) == count
    assert all(ax.has_data() for ax in figure.axes)


@pytest.mark.parametrize("name", ["a", "digits/a-layer-of-some-name", "digits/layer.rank=10,train.kl_weight=0.1" * 3])
@pytest.mark.parametrize("rows", [1, 12])
def test_every_label_is_whole_inside_the_figure_and_apart_from_the_others(rows, name):
    rng = np.random.default_rng(0)
    names = [f"{name}-{row} + temperature scaling" for row in range(rows)]
    scores = {row: {seed: {key: float(rng.random()) for key in COLUMNS} for seed in range(3)} for row in names}
    figure = panels(compare(scores))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    first = figure.axes[0]
    drawn = [label.get_text() for label in first.get_yticklabels()]
    assert ["".join(text.split()) for text in drawn] == ["".join(row.split()) for row in names]
    boxes = [label.get_window_extent(renderer) for label in first.get_yticklabels()]
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
    assert all(above.y0 >= below.y1 - 1 for above, below in zip(boxes, boxes[1:], strict=False))
    assert all(ax.get_window_extent().width > 100 for ax in figure.axes)
    titles = [ax._left_title for ax in figure.axes]
    assert len(titles) == len(COLUMNS)
    extents = [title.get_window_extent(renderer) for title in titles]
    assert not any(a.overlaps(b) for at, a in enumerate(extents) for b in extents[at + 1 :])
