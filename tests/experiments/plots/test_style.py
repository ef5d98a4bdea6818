"""Names, legends and colours that every figure shares."""

import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from probattn.experiments.plots import predictions, style
from probattn.experiments.plots.svg import to_svg

SCHEMES = {"light": {light: light for light in style.DARK}, "dark": style.DARK}
CVD = {  # Machado, Oliveira and Fernandes (2009), severity 1
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "none": np.eye(3),
}


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Contrast ratio of WCAG 2."""
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIELAB of linear RGB."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    ratios = xyz / [0.9505, 1, 1.089]
    x, y, z = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_the_contrast_of_black_on_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_lines_stand_out_from_paper_and_screen(scheme):
    shown = SCHEMES[scheme]
    assert all(contrast(shown[colour], shown[style.PAPER]) >= 4.5 for colour in (style.INK, style.GREY))
    assert all(contrast(shown[colour], shown[style.PAPER]) >= 3 for colour in style.LINES)


@pytest.mark.parametrize("vision", CVD)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_colours_of_lines_differ_for_every_vision(scheme, vision):
    seen = [lab(np.clip(np.array(CVD[vision]) @ linear(SCHEMES[scheme][colour]), 0, 1)) for colour in style.LINES]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 14


def test_every_colour_of_a_figure_has_a_dark_one(result):
    run = result(n=40, classes=3)
    logarithmic, ax = style.subplots(style.SIZE)
    ax.plot([1, 2], [1, 6], color=style.BLUE)
    ax.set_yscale("log")  # with labels of minor ticks
    for figure in (
        logarithmic,
        predictions.reliability(run.probs, run.labels),
        predictions.risk_coverage({"a": (run.probs, run.labels), "b": (run.probs, run.labels)}),
        predictions.confidence(run.probs, run.labels),
    ):
        drawn = to_svg(figure).decode()
        rules, body = drawn.split("</style>", 1)
        assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body)) <= set(style.DARK)
        assert "@media (prefers-color-scheme: dark)" in rules
        texts = [each for each in ElementTree.fromstring(drawn).iter() if each.get("id", "").startswith("text_")]
        assert texts
        assert all("fill: #" in each[0].get("style") for each in texts), "text without a colour is black on dark"


def test_names_are_drawn_whole_and_as_they_are(result):
    assert style.wrapped("network.blocks.6.attention.u") == "blocks.6.attention.u"
    assert style.wrapped("digits/kernel-symmetric + scaling", 16) == "digits/kernel-\nsymmetric +\nscaling"
    assert style.wrapped("0123456789", 4) == "0123\n4567\n89"
    assert style.wrapped("") == ""
    run = result(n=4, classes=2)
    runs = {"_hidden": (run.probs, run.labels), r"$\frac$ and $x$": (run.probs, run.labels)}
    figure = predictions.risk_coverage(runs)
    figure.draw_without_rendering()
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names[:2] == [" _hidden", r"\$\frac\$ and \$x\$"]


@pytest.mark.parametrize("length", [5, 30, 80])
@pytest.mark.parametrize("count", [1, 5, 12])
def test_a_legend_lies_below_the_panels_and_inside_the_figure(length, count):
    figure, ax = style.subplots((6.4, 3.6))
    for number in range(count):
        ax.plot([0, 1], [0, number], label=style.wrapped("x" * (length - 2) + f"{number:02}", 40))
    style.legend(figure, most=4)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    box = figure.legends[0].get_window_extent(renderer)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= ax.get_tightbbox(renderer).y0 + 1
    assert ax.get_window_extent().height > 200  # pixels at 100 dpi
