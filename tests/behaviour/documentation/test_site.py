"""docs/: the check of the built site, and pages that fit their column."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHECKS = runpy.run_path(str(ROOT / "docs" / "check_links.py"))
LOADED = {
    "a script": '<script defer src="https://cdn.example.org/mathjax.js"></script>',
    "a script without protocol": '<script src="//cdn.example.org/mathjax.js"></script>',
    "a style sheet": '<link rel="stylesheet" href="https://fonts.example.org/css?family=A">',
    "a font ahead of its use": '<link rel="preload" as="font" href="http://example.org/a.woff2">',
    "an image": '<img src="https://img.example.org/badge.svg">',
    "an image for other screens": '<img src="a.png" srcset="a.png, https://example.org/b.png 2x">',
    "a frame": '<iframe src="https://example.org/"></iframe>',
    "a background": "<p style=\"background: url('https://example.org/a.png')\">text</p>",
    "a rule of a page": "<style>@import url(https://example.org/a.css);</style>",
    "an import of a script": '<script type="module">import("https://example.org/a.js")</script>',
    "a part of a drawing": '<svg><image xlink:href="https://example.org/a.png"/></svg>',
}
ALLOWED = """<html xmlns="http://www.w3.org/1999/xhtml"><link rel="stylesheet" href="a.css">
<a href="https://example.org/page">elsewhere</a> <a href="//example.org">there</a>
<pre>&lt;script src="https://example.org/a.js"&gt; url(https://example.org/a.png)</pre>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"></svg>"""


def site_with(folder, page, *, sheet="p { background: url(a.png) }"):
    (folder / "index.html").write_text(page, "utf-8")
    (folder / "a.css").write_text(sheet, "utf-8")
    (folder / "a.png").write_bytes(b"")
    return folder


@pytest.mark.parametrize("tag", LOADED.values(), ids=LOADED)
def test_a_site_that_loads_from_another_host_fails_its_check(tag, tmp_path):
    site = site_with(tmp_path, tag)
    assert CHECKS["loaded_from_other_hosts"](site) != []
    assert CHECKS["main"](site) == 1


@pytest.mark.parametrize(
    "sheet",
    ['@import "https://example.org/a.css";', "p { background: url( //example.org/a.png) }"],
)
def test_a_style_sheet_that_loads_from_another_host_fails_the_check(sheet, tmp_path):
    assert CHECKS["main"](site_with(tmp_path, ALLOWED, sheet=sheet)) == 1


def test_links_to_click_on_and_addresses_in_the_text_of_a_page_pass_the_check(tmp_path):
    site = site_with(tmp_path, ALLOWED)
    assert CHECKS["loaded_from_other_hosts"](site) == []
    assert CHECKS["main"](site) == 0


COLUMNS = 100
"""Widest line of code that the column of a page shows without scrolling (docs/_static/site.css)."""
BUILT = {ROOT / "docs" / "_build", ROOT / "docs" / "api" / "generated"}
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if not BUILT & set(page.parents)]
PAGES += [*ROOT.glob("*.md"), *ROOT.glob("ex*/README.md"), *ROOT.glob("experiments/*/README.md")]


def lines_of_code(text):
    """Return the lines of the code in fenced blocks of a page; other directives have text."""
    fence, is_directive, lines = "", False, []
    for line in text.splitlines():
        stripped = line.lstrip()
        if fence and stripped.startswith(fence):
            fence = ""
        elif fence:
            lines += [] if is_directive else [line]
        elif stripped.startswith(("```", "~~~")):
            fence = re.match("`+|~+", stripped)[0]
            is_directive = stripped[len(fence) :].startswith(("{eval-rst}", "{grid", "{toctree}"))
    return lines


@pytest.mark.parametrize("path", sorted(PAGES), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_on_a_page_fits_its_column(path):
    lines = lines_of_code(path.read_text("utf-8"))
    assert [line for line in lines if len(line) > COLUMNS] == []
