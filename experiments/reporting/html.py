"""Filling of the templates: pages, whose text is escaped, and plain text."""

import base64

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.metric_display import (
    MISSING,
    format_number,
    format_value,
    heading,
)
from probattn.experiments.plots.style import to_svg


def render(template: str, **content: object) -> str:
    """Return a file of ``templates/`` filled with content, which is escaped in HTML."""
    return _ENVIRONMENT.get_template(template).render(content)


def paragraphs(template: str, **content: object) -> list[str]:
    """Return the paragraphs of a filled text of ``templates/``, each in one line."""
    lines = [" ".join(paragraph.split()) for paragraph in render(template, **content).split("\n\n")]
    return [line for line in lines if line]


def source(figure: Figure) -> str:
    """Return a figure as a data URI."""
    return f"data:image/svg+xml;base64,{base64.b64encode(to_svg(figure)).decode()}"


def _visible(value: object) -> object:
    """Return text without control characters, % and arrows joined to what is before them; HTML
    stays as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = displayable(value)
    for mark in "%↑↓":
        text = text.replace(f" {mark}", f"\u00a0{mark}")
    return text


def percent(share: float) -> str:
    """Return a share in percent with one decimal."""
    return MISSING if share != share else f"{100 * share:z.1f} %"


_ENVIRONMENT = Environment(
    loader=PackageLoader("probattn.experiments.reporting"),
    autoescape=lambda name: str(name).endswith(".html"),
    finalize=_visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
for _filter in (source, percent, format_number, format_value, heading):
    _ENVIRONMENT.filters[_filter.__name__] = _filter
