"""HTML reports as pages: whole, self-contained, escaped, small, for any kind of data."""

import base64
import re
import sys
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from evaluated_runs import random_prediction

from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.displayable import displayable
from probattn.experiments.reporting import report
from probattn.inference import Prediction

VOID = {"meta", "img", "br", "wbr", "hr"}


class Reader(HTMLParser):
    """Parser that checks nesting and collects the tags and text of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Function that writes a report and parses it, whose figures, which take seconds, are drawn on
    request."""

    def read_report(results, title="a title", *, draw=False):
        if not draw:
            monkeypatch.setattr(report, "figures", lambda result: {})
        report.write(tmp_path / "new" / "report.html", [*map(report.section, results)], title=title)
        reader = Reader()
        reader.feed((tmp_path / "new" / "report.html").read_text("utf-8"))
        reader.close()
        assert reader.open == []
        return reader

    return read_report


HOSTILE = (
    "\x01\x1b[31m",
    "\u202edcba\udcff",
    "a\nb\x00\ufffe",
    "<script>alert('x')</script>\"&amp; $\\frac$ _^{}%#~",
)
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe]")


def test_no_character_at_all_controls_a_terminal_or_breaks_xml_and_the_text_of_any_language_stays():
    """XML 1.0 allows no control characters but tab and line breaks, no surrogates, neither U+FFFE
    nor U+FFFF."""
    shown = displayable(
        "".join(map(chr, [*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode]))
    )
    assert {unicodedata.category(character) for character in shown}.isdisjoint(
        {"Cc", "Cs", "Cn", "Co", "Zl", "Zp"}
    )
    assert {character for character in shown if unicodedata.category(character) == "Cf"} == {
        "\u200c",
        "\u200d",
    }
    assert displayable("naïve ± 1 µm, 中文, 👩\u200d🔬") == "naïve ± 1 µm, 中文, 👩\u200d🔬"
    assert displayable("\x1b[31m\t\u202e\udcff") == r"\x1b[31m\t\u202e\udcff"


def test_page_of_one_run_is_whole_self_contained_and_small(result, read, tmp_path):
    test = random_prediction(60)
    run = result(test, ood={"letters": test}, sets={"shift/fog/3": {"accuracy": 0.5}})
    reader = read([run], title="one run", draw=True)
    assert all(text in reader.text for text in (run.command, "optimiser.lr", "one run"))
    for tag, attrs in reader.tags:
        assert tag not in ("script", "link", "iframe")
        if tag == "img":  # nor may the drawings load anything
            assert attrs["alt"]
            assert attrs["src"].startswith("data:")
            links = re.findall(rb'href="([^"]*)"', base64.b64decode(attrs["src"].split(",", 1)[1]))
            assert all(link.startswith(b"#") for link in links)
    page = (tmp_path / "new" / "report.html").read_text("utf-8")
    assert len(page) < 1e6
    assert "http" not in page


@pytest.mark.parametrize("sets", [{}, {"domain/far": {"accuracy": 0.25}}])
def test_the_table_of_other_domains_stands_on_the_page_of_a_run_that_has_some(result, read, sets):
    reader = read([result(random_prediction(), sets=sets)])
    assert ("test data" in reader.text) == bool(sets)
    assert ("25.00" in reader.text) == bool(sets)


def test_any_text_is_visible_and_escaped(result, read, tmp_path):
    name, test = "".join(HOSTILE), random_prediction(8, classes=4)
    texts = Texts(tuple(f"{HOSTILE[place % 4]} {place}" for place in range(8)), test.labels)
    parts = {"settings": {name: name}, "classes": HOSTILE, "data": texts}
    run = result(test, name=name, command=name, sets={f"domain/{name}": {}}, **parts)
    run = replace(run, posterior=[replace(run.posterior[0], site=name)])
    reader = read([run, run], title=name)
    assert "script" not in [tag for tag, _ in reader.tags]
    page = (tmp_path / "new" / "report.html").read_text("utf-8")
    assert not RAW.search(page)
    heading = ElementTree.fromstring(re.search(r"<h1>.*?</h1>", page)[0]).text
    assert heading == f"{displayable(name)}".replace(" %", "\u00a0%")


def test_a_run_whose_attention_has_no_matrix_is_named_below_the_ranks_of_attention(result, read):
    test = random_prediction(20)
    other = result(test, name="other", spectra={})
    shown = result(test, name="shown")
    assert "no matrix" not in read([shown, shown]).text
    assert re.search(r"no matrix[^:]*: 2\. other\.", read([shown, other]).text)


def test_the_best_run_is_bold_only_where_other_examples_would_tell_it_from_the_next(result, read):
    labels = torch.arange(400) % 3
    right = 0.9 * torch.eye(3, dtype=torch.float64)[labels] + 0.1 / 3
    good = Prediction(probs=right, labels=labels)
    other = right.clone()
    other[0] = right[0].roll(1)  # one error of 400
    bad = Prediction(probs=right.roll(1, dims=1), labels=labels)
    almost = Prediction(probs=other, labels=labels)
    for second, is_bold in ((bad, True), (almost, False)):
        reader = read([result(good), result(second)])
        assert ("strong" in [tag for tag, _ in reader.tags]) == is_bold
