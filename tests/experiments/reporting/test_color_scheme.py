"""The report in light and dark: contrast of its text by the formula of WCAG 2."""

import re
from importlib.resources import files

import pytest
from matplotlib.colors import to_rgb

from probattn.experiments.plots.style import DARK, PAPER

CSS = (files("probattn.experiments.reporting") / "templates" / "style.css").read_text(encoding="utf-8")
LIGHT_RULES, DARK_RULES = re.findall(r":root\{(.*?)\}", CSS, flags=re.DOTALL)[:2]


def colours(rules):
    return dict(re.findall(r"--(\w+):(#[0-9a-f]+)", rules))


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("rules", [LIGHT_RULES, DARK_RULES], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(rules):
    found = colours(rules)
    pairs = [(text, "paper") for text in ("ink", "quiet", "link")] + [
        ("ink", "best"),
        ("quiet", "best"),
        ("ink", "box"),
    ]
    for text, behind in pairs:
        low, high = sorted((luminance(found[text]), luminance(found[behind])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)


def test_both_schemes_name_the_same_colours_and_rules_use_no_others():
    assert colours(LIGHT_RULES).keys() == colours(DARK_RULES).keys()
    assert not re.search("#[0-9a-f]{3}", CSS.split("--box:")[-1].split("}}", 1)[1])
    assert set(re.findall(r"var\(--(\w+)\)", CSS)) - {"width"} <= colours(LIGHT_RULES).keys()


def test_figures_have_the_background_of_the_page():
    assert colours(LIGHT_RULES)["paper"] in (PAPER, "#fff")
    assert colours(DARK_RULES)["paper"] == DARK[PAPER]
