"""Formulas as MathML, which browsers draw by themselves, without a script or another host."""

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
CONVERTER = LatexToMathML()


def mathml(node: nodes.math | nodes.math_block, *, displaystyle: bool) -> str:
    """Return the formula of a node as MathML; a formula that cannot be converted is a warning."""
    latex = node.astext()
    try:
        return CONVERTER.convert_with_local_state(latex, displaystyle=displaystyle)
    except LatexError as error:
        LOGGER.warning("The formula %r cannot be converted: %s", latex, error, location=node)
        return ""


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math"))
    self.body.append(f"{mathml(node, displaystyle=False)}</span>")
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(f"{mathml(node, displaystyle=True)}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
