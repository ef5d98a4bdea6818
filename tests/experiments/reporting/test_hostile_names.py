"""Names from data reach no border raw: figures, HTML, Markdown, LaTeX, CSV and the terminal show escapes."""

import csv
import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.plots import decisions, examples, style, svg
from probattn.experiments.reporting import report
from probattn.experiments.reporting.table import Grid, to_table
from probattn.experiments.reporting.table_formats import csv as to_csv
from probattn.experiments.reporting.table_formats import latex, markdown, save, terminal

NAMES = ("\x01", "\x1b[31mred\x1b[0m", "\u202edcba", "\udcff", "a\nb\r\x85c", "\x00", "\ufffe", "$x$ \\ _^{}%&#~<>|`*")
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe]")


@pytest.fixture(params=NAMES, ids=ascii)
def name(request):
    return request.param


def named(result, names):
    """The result with these names of four classes and in its texts."""
    texts = tuple(f"{names[n % 4]} text {n}" for n in range(len(result.labels)))
    return replace(result, classes=names, texts=texts, images=torch.empty(0))


def test_figures_show_any_name(result):
    figures = []
    for names in (NAMES[:4], NAMES[4:]):
        found = named(result(), names)
        figures.append(examples.excerpts(found.texts, found.probs, found.labels, found.classes, [0, 1, 2, 3]))
        figures.append(decisions.set_sizes(dict.fromkeys(names, (found.probs > 0.2, found.labels)), alpha=0.1))
    for figure in figures:
        drawn = svg.to_svg(figure)
        ElementTree.fromstring(drawn)
        assert not RAW.search(drawn.decode())


def test_a_line_break_of_ours_stays_and_one_in_a_name_does_not():
    assert style.literal("two\nlines\x1b $") == "two\nlines\\x1b \\$"
    assert style.wrapped("two\nlines") == r"two\nlines"


def test_a_page_shows_any_name(result, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PANELS", report.PANELS[:1])
    name = "".join(NAMES)
    found = named(result(name, settings={name: name}, domains={name: result().metrics}), NAMES[:4])
    report.write(tmp_path / "report.html", [*map(report.section, (found, result("other")))], title=f"probattn: {name}")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not RAW.search(page)
    assert ElementTree.fromstring(re.search(r"<h1>.*?</h1>", page)[0]).text == f"probattn: {displayable(name)}"


def tables(name):
    comparison = compare(
        {name: {0: {"nll": 1.0}}, "-1e3": {0: {"nll": -2.0}}}, groups={name: [name, "-1e3"]}, baselines={"-1e3": name}
    )
    return comparison, Grid(name, (name, "b"), {name: (-1.0, 2.0)}, note=name)


def test_tables_show_any_name(tmp_path, name):
    for source in tables(name):
        table = to_table(source)
        paths = save(tmp_path / "table", source)
        shown = [path.read_text(encoding="utf-8") for path in paths]
        console = Console(file=io.StringIO(), width=200, color_system="truecolor", force_terminal=True)
        console.print(terminal(table))
        plain = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
        assert [text for text in (*shown, plain) if RAW.search(text)] == []
        assert shown == [markdown(table), latex(table), to_csv(source)]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1", " =1", "＝1", "\r@x"])
def test_no_text_of_a_csv_file_is_a_formula(name):
    for source in tables(name):
        for row in csv.reader(io.StringIO(to_csv(source))):
            for cell in row:
                assert not cell.strip().startswith(tuple("=+-@＝＋－＠")) or float(cell) < 0, cell


def test_numbers_of_a_csv_file_stay_numbers():
    comparison, grid = tables("a")
    (*_, last) = csv.DictReader(io.StringIO(to_csv(comparison)))
    assert (last["mean"], last["row"], last["difference"]) == ("-2.0", "'-1e3", "-3.0")
    assert list(csv.reader(io.StringIO(to_csv(grid))))[1] == ["a", "-1.0", "2.0"]
