"""Check the links of the built site without a network:
``python docs/check_links.py [docs/_build/html]``.

Every link to a file of the site must lead to a file, and its fragment to an ``id`` there. The links
to other sites are not followed: they are listed, each with a page that has it, in
``external-links.txt`` beside the folder of the site. No page, style sheet or drawing may load
anything from another host, such as a script or a font: readers without a network see the same.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).parent / "_build" / "html"
LOADING = {"href", "xlink:href", "src", "srcset", "poster", "data", "style"}
"""Attributes by which a tag other than a link to click on loads a file."""
HOST = re.compile(r"(?:^|[\s,('\"])(?:https?:)?//[^\s/]")
"""The address of a file on another host, also in a list of addresses or in CSS."""
LOADED_BY_CSS = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^\s)'\";]*")
LOADED_BY_SCRIPT = re.compile(r"['\"`](?:https?:)?//[^'\"`\s]+")


class Page(HTMLParser):
    """Links and anchors of an HTML page, and what it loads from other hosts.

    Args:
        text: HTML.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag links to, and the name that it can be linked by."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in {"href", "src"} and value:
                self.links.add(value)
            if name in LOADING and tag not in {"a", "area"} and HOST.search(value or ""):
                self.loaded.add(value or "")


def loaded_from_other_hosts(site: Path) -> list[str]:
    """Return what the files of a site load from other hosts, a sentence each.

    Args:
        site: folder of the built site.
    """
    sentences = []
    for path in sorted(site.rglob("*")):
        if path.suffix not in {".html", ".css", ".svg"}:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".css":
            loaded = set(LOADED_BY_CSS.findall(text))
        else:
            # The text of a page may show addresses: what loads stands in tags, or in these two.
            sheets = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
            scripts = "".join(re.findall(r"<script.*?</script>", text, re.DOTALL))
            loaded = Page(text).loaded
            loaded |= {*LOADED_BY_CSS.findall(sheets), *LOADED_BY_SCRIPT.findall(scripts)}
        name = path.relative_to(site).as_posix()
        sentences += [f"{name}: {address} is on another host." for address in sorted(loaded)]
    return sentences


def check(site: Path) -> tuple[list[str], dict[str, str]]:
    """Return the broken links, a sentence each, and the links to other sites with a page that has
    each.

    Args:
        site: folder of the built site.
    """
    site = site.resolve()
    files = [
        path
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.relative_to(site).parts
    ]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in files}
    broken, external = [], {}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        # sphinx.ext.viewcode gives one prefix to all names of a file, which may be documented under
        # several modules.
        checks_anchors = not name.startswith("_modules/")
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                external.setdefault(link, name)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_relative_to(site) or not target.is_file():
                broken.append(f"{name}: {link} leads to no file of the site.")
            elif not parts.fragment or target not in pages or not checks_anchors:
                continue
            elif unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{name}: {link} leads to no heading or name of that page.")
    return broken, external


def main(site: Path = SITE) -> int:
    """Print the broken links, list the external ones, and return the exit status."""
    if not (site / "index.html").is_file():
        print(f"{site} has no index.html. Build the site first: make docs.", file=sys.stderr)
        return 2
    broken, external = check(site)
    broken += loaded_from_other_hosts(site)
    others = {link: page for link, page in external.items() if link.startswith(("http:", "https:"))}
    listing = site.parent / "external-links.txt"
    listing.write_text(
        "".join(f"{link}\t{page}\n" for link, page in sorted(others.items())), encoding="utf-8"
    )
    found = "No link is broken, and nothing is loaded from another host"
    print("\n".join(broken) or f"{found}; {len(others)} links lead to other sites: {listing}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
