import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch

from probattn.experiments.data.images.corruptions import CORRUPTIONS, STANDARD
from probattn.experiments.plots.shift import boxes, by_severity
from probattn.experiments.plots.style import LINES


def results(labels=("softmax", "kep-svgp"), names=STANDARD, severities=(1, 2, 3, 4, 5)):
    """Accuracy 0.9 − 0.1 severity + 0.01 × number of the run + 0.001 × number of the corruption."""
    return {
        label: {
            name: {
                level: {"accuracy": 0.9 - 0.1 * level + 0.01 * run + 0.001 * at, "nll": 0.2 * level}
                for level in severities
            }
            for at, name in enumerate(names)
        }
        for run, label in enumerate(labels)
    }


def drawn_bars(ax):
    return [bar for group in ax.containers for bar in group]


def test_bars_at_one_severity_stand_where_their_corruption_is():
    figure = boxes(results(severities=[5]), metric="accuracy")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["noise", "blur", "weather", "digital"]
    for ax, category in zip(figure.axes, titles, strict=True):
        names = [name for name in STANDARD if CORRUPTIONS[name].category == category]
        assert [text.get_text() for text in ax.get_xticklabels()] == [name.replace("_", " ") for name in names]
        for run, group in enumerate(ax.containers):
            for place, (bar, name) in enumerate(zip(group, names, strict=True)):
                assert bar.get_height() == pytest.approx(40 + run + 0.1 * STANDARD.index(name))
                assert abs(bar.get_x() + bar.get_width() / 2 - place) < 0.4
                assert to_hex(bar.get_facecolor()) == LINES[run].lower()
        assert ax.get_ylim()[0] == 0
    assert figure._suptitle.get_text() == "bars: severity 5"
    assert figure.axes[0].get_ylabel() == "ACC (%), higher is better"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["softmax", "kep-svgp", "best mean"]


def test_boxes_show_quartiles_and_range():
    runs = results(names=["fog"])
    for levels in runs.values():
        levels["fog"][5]["nll"] = 3.0  # far out, and still the end of the line
    figure = boxes(runs, metric="nll")
    (ax,) = figure.axes
    first, second = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    heights = first.get_path().vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((4, 8))  # 10 × 0.2 × severities 2 and 4
    ranges = sorted(line.get_ydata().tolist() for line in ax.lines)
    assert ranges[0] == pytest.approx([4, 2])
    assert ranges[-1] == pytest.approx([8, 30])
    assert np.allclose(ranges[2:4], 6)  # the medians
    assert first.get_path().vertices[:, 0].max() < second.get_path().vertices[:, 0].min()
    assert ax.get_ylabel() == "NLL (×10), lower is better"
    assert figure._suptitle.get_text() == "boxes: quartiles over severities 1, 2, 3, 4, 5"


def test_twelve_runs_can_be_told_apart():
    labels = [f"run {number}" for number in range(12)]
    figure = boxes(results(labels, names=CORRUPTIONS, severities=[3]), metric="accuracy")
    looks = {(to_hex(patch.get_facecolor()), patch.get_hatch()) for patch in figure.legends[0].get_patches()}
    assert len(looks) == 12
    for ax in figure.axes:
        bars = sorted(drawn_bars(ax), key=lambda bar: bar.get_x())
        assert len(bars) == 12 * len(ax.get_xticks())
        for left, right in zip(bars, bars[1:], strict=False):
            assert left.get_x() + left.get_width() < right.get_x() + 1e-9
    lines = by_severity(results(labels), metric="accuracy").axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 12


def test_what_is_not_finite_or_missing_is_left_out():
    runs = results(names=["fog", "snow"], severities=[5])
    runs["softmax"]["fog"][5]["accuracy"] = math.nan
    del runs["kep-svgp"]["snow"]
    (ax,) = boxes(runs, metric="accuracy").axes
    assert [text.get_text() for text in ax.get_xticklabels()] == ["snow", "fog"]  # in CIFAR-C's order
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in drawn_bars(ax)}
    assert heights == {0: pytest.approx(40.1), 1: pytest.approx(41)}


def test_nothing_to_draw():
    nothing = {"softmax": {"fog": {1: {"accuracy": math.nan}}, "snow": {2: {}}}}
    for draw in (boxes, by_severity):
        assert draw(nothing, metric="accuracy") is None
        assert draw({}, metric="accuracy") is None


def test_means_and_ranges_by_severity():
    figure = by_severity(results(names=["fog", "snow", "frost"], severities=[1, 3, 5]), metric="accuracy")
    (ax,) = figure.axes
    for run, line in enumerate(ax.lines):
        assert line.get_ydata() == pytest.approx([80.1 + run, 60.1 + run, 40.1 + run])
        assert np.abs(line.get_xdata() - [1, 3, 5]).max() < 0.1
    first = ax.collections[0].get_segments()
    assert [segment[:, 1].tolist() for segment in first] == [
        pytest.approx(pair) for pair in ([80, 80.2], [60, 60.2], [40, 40.2])
    ]
    assert ax.get_xticks().tolist() == [1, 3, 5]
    assert ax.get_ylabel() == "ACC (%), higher is better"


def test_a_run_with_other_severities_has_its_own_points():
    runs = results(severities=[1, 5]) | results(labels=["late"], severities=[4])
    lines = by_severity(runs, metric="nll").axes[0].lines
    assert [len(line.get_xdata()) for line in lines] == [2, 2, 1]
    assert lines[2].get_ydata() == pytest.approx([8])


def test_a_diamond_stands_above_the_best_run_of_each_corruption():
    figure = boxes(results(names=["fog", "snow"], severities=[5]), metric="accuracy")
    (ax,) = figure.axes
    marks = [(mark.get_offsets()[0, 0], to_hex(mark.get_facecolor()[0])) for mark in ax.collections]
    assert marks == [(pytest.approx(0.2), LINES[1]), (pytest.approx(1.2), LINES[1])]  # the second run is the higher
    assert not boxes(results(["alone"]), metric="accuracy").axes[0].collections


def test_values_of_several_magnitudes_are_on_a_log_scale():
    runs = results(names=["fog", "snow"])
    runs["softmax"]["fog"][5]["nll"] = 9.0
    for draw in (boxes, by_severity):
        assert draw(runs, metric="nll").axes[0].get_yscale() == "log"
        assert draw(results(names=["fog"]), metric="nll").axes[0].get_yscale() == "linear"
