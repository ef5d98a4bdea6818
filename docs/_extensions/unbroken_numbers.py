"""Keep "98.1 ± 0.4" and "[0.6, 3.0]" on one line, also in narrow columns of tables."""

import re

from docutils import nodes
from sphinx.application import Sphinx

NUMBER_WITH_SPREAD = re.compile(r"(?:(?<=\d)|^) ± (?=\d)|(?<=\d), (?=[+−-]?\d[\d.]*\])")


def _keep_together(app: Sphinx, doctree: nodes.document) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.literal | nodes.FixedTextElement):
            unbroken = NUMBER_WITH_SPREAD.sub(
                lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text
            )
            if unbroken != text:
                text.parent.replace(text, nodes.Text(unbroken))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-read", _keep_together)
    return {"parallel_read_safe": True}
