"""Names, legends and colours that every figure shares."""

import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from probattn.experiments.plots import prediction_figures, style

SCHEMES = {"light": {light: light for light in style.DARK}, "dark": style.DARK}
NAMES = ("\x01", "\x1b[31mred\x1b[0m", "\u202edcba", "\udcff", "a\nb\r\x85c", "\x00", "\ufffe", "_$x$ \\ _^{}%&#~<>|`*")
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe]")


def contrast(one, other):
    """Contrast ratio of WCAG 2."""
    rgb = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_lines_stand_out_from_paper_and_screen(scheme):
    shown = SCHEMES[scheme]
    assert all(contrast(shown[colour], shown[style.PAPER]) >= 4.5 for colour in (style.INK, style.GREY))
    assert all(contrast(shown[colour], shown[style.PAPER]) >= 3 for colour in style.LINES)
    assert len({shown[colour] for colour in style.LINES}) == len(style.LINES)
    assert min(abs(np.subtract(*map(to_rgb, pair))).sum() for pair in combinations(style.LINES, 2)) > 0.3


def test_every_colour_of_a_figure_has_a_dark_one_and_any_name_is_visible_text(result, tmp_path):
    run = result(n=40, classes=3)
    answers = run.test
    for figure in (
        prediction_figures.reliability(answers),
        prediction_figures.risk_coverage(dict.fromkeys(NAMES, answers)),
    ):
        style.save_figure(tmp_path / "figure.svg", figure)
        drawn = (tmp_path / "figure.svg").read_text(encoding="utf-8")
        assert not RAW.search(drawn)
        rules, body = drawn.split("</style>", 1)
        assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body)) <= set(style.DARK)
        assert "@media (prefers-color-scheme: dark)" in rules
        texts = [part for part in ElementTree.fromstring(drawn).iter() if part.get("id", "").startswith("text_")]
        assert all("fill: #" in part[0].get("style") for part in texts), "text without a colour is black on dark"
    assert style.to_svg(figure)


def test_names_are_drawn_whole_and_as_they_are():
    assert style.wrapped("network.blocks.6.attention.u") == "blocks.6.attention.u"
    assert style.wrapped("0123456789", 4) == "0123\n4567\n89"
    assert style.wrapped("_$x$") == r" _\$x\$"


@pytest.mark.parametrize("length", [5, 80])
@pytest.mark.parametrize("count", [1, 12])
def test_a_legend_lies_below_the_panels_and_inside_the_figure(length, count):
    figure, (ax,) = style.panels(width=6.4, height=3.6)
    for number in range(count):
        ax.plot([0, 1], [0, number], label=style.wrapped("x" * (length - 2) + f"{number:02}", 40))
    style.legend(figure, columns=4)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    box = figure.legends[0].get_window_extent(renderer)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= ax.get_tightbbox(renderer).y0 + 1
    assert ax.get_window_extent().height > 200  # pixels at 100 dpi
