"""Parsing of HTML reports."""

from html.parser import HTMLParser

import pytest

from probattn.experiments.reporting import report

VOID = {"meta", "img", "br", "wbr", "hr"}


class Reader(HTMLParser):
    """Parser that checks nesting and collects the tables (texts by row), images, tags and text of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.tables, self.images, self.tags, self.text = [], [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "img":
            self.images.append(dict(attrs))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data.replace("\u00a0", " ")


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Function that writes a report and parses it, whose figures, which take seconds, are drawn on request."""

    def read_report(results, title="a title", *, draw=False):
        if not draw:
            monkeypatch.setattr(report, "figures", lambda result: {})
        report.write(tmp_path / "new" / "report.html", [*map(report.section, results)], title=title)
        reader = Reader()
        reader.feed((tmp_path / "new" / "report.html").read_text(encoding="utf-8"))
        reader.close()
        assert reader.open == []
        return reader

    return read_report
