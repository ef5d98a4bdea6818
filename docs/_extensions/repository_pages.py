"""Pages that are files elsewhere in the repository, and links between pages as they are on GitHub.

A page of :data:`PAGES` takes its content from the file named there. In every page a link to a file
of the repository becomes a link to its page; a link to a file that has none becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {
    "project/architecture": "ARCHITECTURE.md",
    "project/benchmarks": "BENCHMARKS.md",
    "project/changelog": "CHANGELOG.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/results": "experiments/results/README.md",
    "project/claims": "experiments/results/claims.md",
    "project/intervals": "experiments/results/intervals.md",
}
"""Page → file of the repository."""
LINK = re.compile(
    r"(?P<code>```.*?```|`[^`\n]+`)|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL,
)


def with_site_links(text: str, *, file: Path, page: str) -> str:
    """Return the text of a file with its links as they are on a page of the site.

    Args:
        text: Markdown.
        file: file that the links are relative to.
        page: name of the page, relative to ``docs/`` and without ending.
    """

    def replaced(match: re.Match[str]) -> str:
        target = match["target"] or ""
        if match["code"] or re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        found = (file.parent / path).resolve()
        name = found.relative_to(ROOT).as_posix()
        pages = {other: each for each, other in PAGES.items()}
        here = (DOCS / page).parent
        if name in pages:
            found = DOCS / f"{pages[name]}.md"
        elif not match["image"] and not (found.is_relative_to(DOCS) and found.is_file()):
            return match["text"]
        fragment = f"#{anchor}" if anchor else ""
        return f"{match['image']}[{match['text']}]({os.path.relpath(found, here)}{fragment})"

    return LINK.sub(replaced, text)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    file = ROOT / PAGES[page] if page in PAGES else Path(app.env.doc2path(page))
    if file.suffix == ".md":
        text = file.read_text(encoding="utf-8") if page in PAGES else source[0]
        source[0] = with_site_links(text, file=file, page=page)
        if page in PAGES:
            app.env.note_dependency(str(file))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
