"""HTML of reports: Jinja templates with autoescape, and figures embedded as SVG."""

import base64
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from probattn.experiments.displayable import displayable
from probattn.experiments.plots.svg import to_svg


@dataclass(frozen=True)
class EmbeddedFigure:
    """A figure in a page: SVG in a data URI, size in CSS pixels, alternative text and caption."""

    source: str
    width: int
    height: int
    alt: str
    caption: str
    wide: bool = False


def embed(figure: Figure, *, alt: str, caption: str, wide: bool = False) -> EmbeddedFigure:
    """Return a figure that needs no other file."""
    width, height = (round(96 * side) for side in figure.get_size_inches())
    source = f"data:image/svg+xml;base64,{base64.b64encode(to_svg(figure)).decode()}"
    return EmbeddedFigure(source, width, height, alt, caption, wide)


def render(template: str, **content: object) -> str:
    """Return a template of ``templates/`` filled with content, which is escaped."""
    return _ENVIRONMENT.get_template(template).render(content)


def _prose(text: str) -> str:
    """Join numbers and their % by a no-break space."""
    return text.replace(" %", "\u00a0%")


def _breakable(path: str) -> Markup:
    """Allow line breaks after / and . instead of within a word."""
    return escape(displayable(path)).replace("/", Markup("/<wbr>")).replace(".", Markup(".<wbr>"))


def _displayable_text(value: object) -> object:
    """Make text displayable, unless it is HTML already."""
    return displayable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_ENVIRONMENT = Environment(
    loader=PackageLoader("probattn.experiments.reporting"),
    autoescape=True,
    finalize=_displayable_text,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"prose": _prose, "breakable": _breakable}
