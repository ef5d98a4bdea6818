"""Configuration of the documentation: ``make docs`` builds it into ``docs/_build/html``."""

import sys
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from sphinx.ext import autosummary

import probattn

project = "probattn"
author = "The probattn developers"
version = release = probattn.__version__

highlight_language = "text"  # of blocks without a language, such as commands
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "public_names",
    "repository_pages",
    "unbroken_numbers",
]
exclude_patterns = ["_build", "diagrams.py"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_excludepatterns = [
    "tutorials/*"
]  # shown with their stored outputs: `make tutorials` executes them
nb_execution_timeout = 1200  # a cell takes a minute at most on a quiet machine
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"

autosummary_generate = True
autosummary.WELL_KNOWN_ABBREVIATIONS += (
    "eq.",
    "eqs.",
    "Eq.",
    "Alg.",
    "alg.",
    "sec.",
    "app.",
)  # do not end a summary
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
copybutton_exclude = ".linenos, .gp, .go"

_LIBRARIES = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "pyro": "https://docs.pyro.ai/en/stable/",
    "gpytorch": "https://docs.gpytorch.ai/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
}


def _is_reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "objects.inv", timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


# Without a network the site is built without links to other libraries' documentation.
intersphinx_mapping = {name: (url, None) for name, url in _LIBRARIES.items() if _is_reachable(url)}
nitpicky = True
# Names of other libraries, and type variables; names of this one must resolve (see
# _extensions/public_names.py).
nitpick_ignore_regex = [(r"py:.*", r"(?!probattn).*")]

html_math_renderer = "mathml"  # see _extensions/mathml.py
html_theme = "pydata_sphinx_theme"
html_title = "probattn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "probattn"},
    "navbar_align": "left",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_context = {"default_mode": "auto"}
