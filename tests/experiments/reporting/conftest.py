"""Parsing of HTML reports."""

from html.parser import HTMLParser

import pytest

from probattn.experiments.reporting import html, report

VOID = {"meta", "img", "br", "wbr", "hr"}


class Reader(HTMLParser):
    """Parser that checks nesting and collects the tables, images, tags and text of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.tables, self.images, self.tags, self.text = [], [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "img":
            self.images.append(dict(attrs))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append({"text": "", "best": False, **dict(attrs)})
        if tag == "strong":
            self.tables[-1][-1][-1]["best"] = True
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if "table" in self.open and self.open[-1] in ("td", "th", "strong", "small", "em"):
            self.tables[-1][-1][-1]["text"] += data


def read_report(path, results, title="a title", *, draw=False):
    """Write a report and parse it, without drawing its figures, which takes most of the time, unless ``draw``."""
    with pytest.MonkeyPatch.context() as patch:
        if not draw:
            patch.setattr(html, "to_svg", lambda _: b"<svg/>")
        report.write(path, [*map(report.section, results)], title=title)
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def read():
    """Function that writes a report and parses it."""
    return read_report
