"""Tables parsed back: Rich's cells, Markdown through a parser, LaTeX by its grammar, CSV by the csv module."""

import csv
import io
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from probattn.experiments.evaluation.metric_display import DISPLAY, MetricDisplay
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.reporting.table import Grid, to_table
from probattn.experiments.reporting.table_formats import csv as to_csv
from probattn.experiments.reporting.table_formats import latex, markdown, terminal, terminal_parts

METRICS = {"accuracy": DISPLAY["accuracy"], "nll": DISPLAY["nll"], "aurc": DISPLAY["aurc"], "auroc": DISPLAY["auroc"]}
NASTY = r"50% of a_b & c*d* [x] {y} $z$ #1 ~ ^ \n | <b> `q`"


def runs(accuracy, nll, aurc, auroc=math.nan):
    columns = zip(accuracy, nll, aurc, strict=True)
    return {s: {"accuracy": a, "nll": n, "aurc": r, "auroc": auroc} for s, (a, n, r) in enumerate(columns)}


def comparison(**options):
    """Return a comparison of two single models with three seeds and an ensemble; only the latter has an AUROC.

    Differences of accuracy 0.20, 0.10, 0.15: [0.02579, 0.27421]; of nll all −0.10; of aurc ±0.001 around 0.
    """
    scores = {
        "softmax": runs((0.70, 0.70, 0.85), (0.50, 0.40, 0.45), (0.010, 0.010, 0.010)),
        "kep": runs((0.90, 0.80, 1.00), (0.40, 0.30, 0.35), (0.011, 0.009, 0.010)),
        "ensemble": runs((0.95,), (0.2,), (0.005,), auroc=0.75),
    }
    options = {"baselines": {"kep": "softmax", "ensemble": "softmax"}, "metrics": METRICS} | options
    return compare(scores, **options)


GROUPS = {"Single models": ["softmax", "kep"], "Ensembles": ["ensemble"]}
CELLS = {  # number, spread, difference; bold and clear are tested by name
    "softmax": ["75.00 ± 8.66", "4.50 ± 0.50", "10.00 ± 0.00", "–"],
    "kep": ["90.00 ± 10.00 / [2.58, 27.42]*", "3.50 ± 0.50 / -1.00", "10.00 ± 1.00 / [-2.48, 2.48]", "–"],
    "ensemble": ["95.00 / +25.00", "2.00 / -3.00", "5.00 / -5.00", "75.00"],
}
BOLD = {"kep": ["90.00", "3.50"]}  # within single models; aurc is a tie of all, auroc exists once


# ---------------------------------------------------------------- reading


class Page(HTMLParser):
    """Parser that collects rows of tables as texts, a line break as " / ", and bold and italic texts."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.bold, self.italic, self.open, self.text = [], [], [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "br":
            self.rows[-1][-1] += " / "
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if "p" in self.open:
            self.text += data
        if "strong" in self.open:
            self.bold.append(data)
        if "em" in self.open:
            self.italic.append(data)


def read_markdown(text):
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


UNESCAPED = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textbar{}": "|",
    r"\textless{}": "<", r"\textgreater{}": ">", "{[}": "[", "{*}": "*",
    **{rf"\{c}": c for c in "{}$&#_%"},
}  # fmt: skip


def read_latex(text):
    """Return rows of raw cells; assert that braces and dollars balance and that rows fill the columns."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines[-1] == r"\end{tabular}"
    count = len(re.fullmatch(r"\\begin\{tabular\}\{(lr*)\}", lines[0]).group(1))
    assert [lines[1], lines[-2]] == [r"\toprule", r"\bottomrule"]
    rows = []
    for line in lines[2:-2]:
        if line == r"\midrule":
            continue
        assert line.endswith(r" \\")
        bare = re.sub(r"\\.", "", line[:-3])
        depth = 0
        for c in bare:
            depth += {"{": 1, "}": -1}.get(c, 0)
            assert depth >= 0
        assert depth == 0
        assert bare.count("$") % 2 == 0
        assert not bare.lstrip().startswith(("[", "*"))
        cells = re.split(r"(?<!\\) & ", f" {line[:-3]}")
        heading = re.match(r" \\multicolumn\{(\d+)\}", cells[0])
        assert (int(heading.group(1)) if heading else len(cells)) == count
        rows.append([cell.strip() for cell in cells])
    return rows


def plain_latex(text):
    """Undo the escapes of LaTeX."""
    return re.sub("|".join(map(re.escape, UNESCAPED)), lambda match: UNESCAPED[match.group()], text)


def read_terminal(table):
    """Return cells by column name, headings included, as plain texts."""
    return {str(c.header): [str(cell) for cell in c.cells] for c in table.columns}


def bold_parts(table):
    cells = [cell for column in table.columns[1:] for cell in column.cells if cell]
    return [cell.plain[span.start : span.end] for cell in cells for span in cell.spans if "bold" in str(span.style)]


def printed(table, width):
    output = Console(width=width, file=io.StringIO())
    output.print(table)
    return output.file.getvalue()


# ---------------------------------------------------------------- a comparison


def test_terminal_table():
    table = terminal(to_table(comparison(groups=GROUPS)))
    cells = read_terminal(table)
    assert list(cells) == ["method", "ACC ↑\n%", "NLL ↓\n×10", "AURC ↓\n×10³", "AUROC ↑\n%"]
    names = ["Single models", "softmax", "kep", "Ensembles", "ensemble"]
    assert cells.pop("method") == names
    assert [row.end_section for row in table.rows] == [False, False, True, False, True]
    for number, column in enumerate(cells.values()):
        expected = [CELLS[row][number].replace("± ", "±").replace(" / ", "\n") for row in CELLS]
        assert [text for text in column if text] == expected
    assert bold_parts(table) == BOLD["kep"]


def test_baselines_are_named_row_by_row_if_they_differ():
    table = to_table(comparison(baselines={"kep": "softmax", "ensemble": "kep"}))
    assert read_terminal(terminal(table))["method"] == ["softmax", "kep\n  vs softmax", "ensemble\n  vs kep"]
    assert "the paired difference to the row named," in table.note


@pytest.mark.parametrize(("width", "parts"), [(59, 1), (58, 2), (37, 2), (36, 4), (26, 4)])
def test_a_narrow_terminal_has_tables_of_fewer_columns(width, parts):
    tables = terminal_parts(to_table(comparison(groups=GROUPS)), width=width)
    assert len(tables) == parts
    cells = [read_terminal(table) for table in tables]
    names = [each.pop("method") for each in cells]
    assert names == [names[0]] * parts
    whole = read_terminal(terminal(to_table(comparison(groups=GROUPS))))
    del whole["method"]
    assert [item for each in cells for item in each.items()] == list(whole.items())
    assert [table.caption is None for table in tables] == [True] * (parts - 1) + [False]
    text = ""
    for table in tables:
        table.padding = 0
        text += printed(table, width)
    assert max(map(cell_len, text.splitlines())) <= width
    for piece in ("90.00 ±10.00", "[2.58, 27.42]*", "[-2.48, 2.48]"):
        assert piece in text


def test_a_name_too_long_for_the_terminal_leaves_the_table_whole():
    table = compare({"a" * 100: {0: {"nll": 1.0, "accuracy": 0.5}}})
    assert [len(part.columns) for part in terminal_parts(to_table(table), width=80)] == [3]


def test_names_are_no_markup():
    scores = {NASTY: {0: {"nll": 1.0}}, "[red]b[/red]": {0: {"nll": 2.0}}}
    table = compare(scores, groups={"[bold]": list(scores)})
    text = printed(terminal(to_table(table)), 200)
    assert all(name in text for name in (*scores, "[bold]"))


def test_markdown_table():
    text = markdown(to_table(comparison(groups=GROUPS)))
    page = read_markdown(text)
    assert page.rows[0] == ["method", "ACC % ↑", "NLL ×10 ↓", "AURC ×10³ ↓", "AUROC % ↑"]
    assert page.rows[1:] == [
        ["Single models", "", "", "", ""],
        ["softmax", *CELLS["softmax"]],
        ["kep / vs softmax", *CELLS["kep"]],
        ["Ensembles", "", "", "", ""],
        ["ensemble / vs softmax", *CELLS["ensemble"]],
    ]
    assert page.bold == BOLD["kep"]
    assert page.italic == ["Single models", "Ensembles"]
    assert page.text == (
        "Mean ± standard deviation over 1 to 3 seeds. In brackets the 95 % interval of the paired difference to "
        "softmax, * where it excludes 0; a difference without an interval has its sign. "
        "The best of each group is bold."
    )


def test_latex_table():
    rows = read_latex(latex(to_table(comparison(groups=GROUPS))))
    up, down = r" $\uparrow$", r" $\downarrow$"
    assert rows == [
        ["method", f"ACC{up}", f"NLL{down}", f"AURC{down}", f"AUROC{up}"],
        ["", r"\%", r"$\times 10$", r"$\times 10^3$", r"\%"],
        [r"\multicolumn{5}{l}{\emph{Single models}}"],
        ["softmax", r"$75.00 \pm 8.66$", r"$4.50 \pm 0.50$", r"$10.00 \pm 0.00$", "--"],
        ["kep", r"$\mathbf{90.00} \pm 10.00$", r"$\mathbf{3.50} \pm 0.50$", r"$10.00 \pm 1.00$", "--"],
        [
            r"\quad vs.\ softmax",
            r"\scriptsize $[2.58, 27.42]^{*}$",
            r"\scriptsize $-1.00$",
            r"\scriptsize $[-2.48, 2.48]$",
            "",
        ],
        [r"\multicolumn{5}{l}{\emph{Ensembles}}"],
        ["ensemble", "$95.00$", "$2.00$", "$5.00$", "$75.00$"],
        [r"\quad vs.\ softmax", r"\scriptsize $+25.00$", r"\scriptsize $-3.00$", r"\scriptsize $-5.00$", ""],
    ]
    assert "% Mean ± standard deviation over 1 to 3 seeds." in latex(to_table(comparison()))


def test_csv_has_the_numbers_in_full():
    table = comparison(groups=GROUPS)
    records = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(r["group"], r["row"], r["metric"]) for r in records] == [
        (group, row, key) for group, rows in GROUPS.items() for row in rows for key in METRICS
    ]
    for record in records:
        cell = table.cells[record["row"]][record["metric"]]
        assert int(record["n"]) == cell.n
        assert record["baseline"] == ("" if record["row"] == "softmax" else "softmax")
        for field in ("mean", "std", "difference", "low", "high"):
            value = getattr(cell, field)
            if value is None or math.isnan(value):
                assert record[field] == ""
            else:
                assert float(record[field]) == value


def test_without_groups_baselines_and_seeds_the_note_says_less():
    table = compare({"a": {0: {"nll": 1.0}}, "b": {0: {"nll": 2.0}}})
    page = read_markdown(markdown(to_table(table)))
    assert page.rows == [["method", "NLL ×10 ↓"], ["a", "10.00"], ["b", "20.00"]]
    assert page.text == "One seed. The best is bold."
    assert page.bold == ["10.00"]
    assert str(terminal(to_table(table)).caption) == page.text


def test_a_metric_that_is_missing_counts_no_seed():
    table = compare({"a": {0: {"nll": 1.0}, 1: {"nll": 3.0}}, "b": {0: {}}})
    assert "over 2 seeds" in markdown(to_table(table))
    assert to_csv(table).splitlines()[-1] == ",b,nll,0,,,,,,"


label = st.text(st.sampled_from(list(NASTY)), min_size=1, max_size=12).map(lambda t: " ".join(t.split())).filter(bool)


@settings(deadline=None, max_examples=150)
@given(st.lists(label, min_size=3, max_size=3, unique=True), label)
def test_any_name_survives_every_format(names, title):
    first, second, heading = names
    metrics = {"x": MetricDisplay(title, 1, higher_is_better=True)}
    scores = {first: {0: {"x": 1.0}}, second: {0: {"x": 2.0}}}
    table = compare(scores, metrics=metrics, groups={heading: [first, second]}, baselines={second: first})
    page = read_markdown(markdown(to_table(table)))
    assert page.rows == [
        ["method", f"{title} ↑"],
        [heading, ""],
        [first, "1.00"],
        [f"{second} / vs {first}", "2.00 / +1.00"],
    ]
    rows = read_latex(latex(to_table(table)))
    assert plain_latex(rows[0][1]) == rf"{title} $\uparrow$"
    assert plain_latex(rows[1][0]) == rf"\multicolumn{{2}}{{l}}{{\emph{{{heading}}}}}"
    assert [plain_latex(row[0]) for row in rows[2:]] == [first, second, rf"\quad vs.\ {first}"]
    records = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(r["group"], r["row"], r["baseline"]) for r in records] == [(heading, first, ""), (heading, second, first)]
    displayed = read_terminal(terminal(to_table(table)))
    assert displayed["method"] == [heading, first, second]


def test_what_looks_like_an_entity_is_none():
    table = compare({"R&lt;D": {0: {"nll": 1.0}}})
    assert read_markdown(markdown(to_table(table))).rows[1][0] == "R&lt;D"


# ---------------------------------------------------------------- a matrix

GRID = Grid(
    "corruption",
    ("1", "3", "5"),
    {"gaussian_noise": (0.91234, 0.8, math.nan), "fog": (0.91226, 0.85, 0.7), "snow": (0.5, -0.00001, 0.71)},
    scale=100,
    decimals=1,
    higher_is_better=True,
    note="Accuracy by severity.",
)


def test_a_grid_in_all_formats():
    heads = [f"{severity} ↑\n%" for severity in "135"]
    cells = [["91.2", "80.0", "–"], ["91.2", "85.0", "70.0"], ["50.0", "0.0", "71.0"]]
    bold = ["91.2", "91.2", "85.0", "71.0"]
    table = terminal(to_table(GRID))
    shown = read_terminal(table)
    assert shown.pop("corruption") == list(GRID.rows)
    assert list(shown) == heads
    assert [list(row) for row in zip(*shown.values(), strict=True)] == cells
    assert sorted(bold_parts(table)) == sorted(bold)
    page = read_markdown(markdown(to_table(GRID)))
    assert page.rows[0] == ["corruption", "1 % ↑", "3 % ↑", "5 % ↑"]
    assert page.rows[1:] == [[name, *row] for name, row in zip(GRID.rows, cells, strict=True)]
    assert (sorted(page.bold), page.text) == (sorted(bold), GRID.note)
    rows = read_latex(latex(to_table(GRID)))
    assert rows[1] == ["", r"\%", r"\%", r"\%"]
    assert rows[2] == [r"gaussian\_noise", r"$\mathbf{91.2}$", "$80.0$", "--"]
    assert rows[4] == ["snow", "$50.0$", "$0.0$", r"$\mathbf{71.0}$"]
    head, *lines = csv.reader(io.StringIO(to_csv(GRID)))
    assert head == ["corruption", "1", "3", "5"]
    for (name, *texts), (row, values) in zip(lines, GRID.rows.items(), strict=True):
        assert name == row
        assert [float(text) if text else None for text in texts] == [None if math.isnan(v) else v for v in values]


def test_a_grid_without_a_direction_marks_none_and_has_no_unit():
    grid = Grid("detector", ["SVHN"], {"energy": [0.5], "entropy": [0.25]})
    assert markdown(to_table(grid)) == "| detector | SVHN |\n| --- | ---: |\n| energy | 0.50 |\n| entropy | 0.25 |\n"
    assert [row[1] for row in read_latex(latex(to_table(grid)))] == ["SVHN", "$0.50$", "$0.25$"]


def test_lower_is_better_in_a_grid():
    page = read_markdown(markdown(to_table(Grid("d", ["x"], {"a": [10.0], "b": [9.0]}, higher_is_better=False))))
    assert page.rows[0] == ["d", "x ↓"]
    assert page.bold == ["9.00"]


def test_a_ragged_grid_is_refused():
    with pytest.raises(ValueError, match="row 'a' has 1 numbers for 2 columns"):
        Grid("d", ["x", "y"], {"a": [1.0]})
