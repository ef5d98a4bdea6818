"""Tables of comparisons and metrics, read back from each format: Markdown by a parser, LaTeX by its grammar."""

import math
import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from probattn.experiments.evaluation.metric_display import DISPLAY, MetricDisplay
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.reporting.tables import comparison_table, latex, markdown, terminal

METRICS = {"accuracy": DISPLAY["accuracy"], "nll": DISPLAY["nll"], "auroc": DISPLAY["auroc"]}
NASTY = r"50% of a_b & c*d* [x] {y} $z$ #1 ~ ^ \n | <b> `q` -1"
ROWS = [
    ["**Single models**", "", "", ""],
    ["softmax", "75.00 ± 8.66", "4.50 ± 0.50", "–"],
    ["kep", "**90.00 ± 10.00**", "**3.50 ± 0.50**", "–"],
    ["minus softmax", "[2.58, 27.42]*", "-1.00", ""],
    ["**Ensembles**", "", "", ""],
    ["ensemble", "95.00", "2.00", "75.00"],
    ["minus softmax", "+25.00", "-3.00", ""],
]


def runs(accuracy, nll, auroc=math.nan):
    pairs = zip(accuracy, nll, strict=True)
    return {seed: {"accuracy": a, "nll": n, "auroc": auroc} for seed, (a, n) in enumerate(pairs)}


def comparison():
    """Differences of accuracy 0.20, 0.10, 0.15, whose interval is [0.02579, 0.27421]; of nll all −0.10."""
    scores = {
        "softmax": runs((0.70, 0.70, 0.85), (0.50, 0.40, 0.45)),
        "kep": runs((0.90, 0.80, 1.00), (0.40, 0.30, 0.35)),
        "ensemble": runs((0.95,), (0.2,), auroc=0.75),
    }
    groups = {"Single models": ["softmax", "kep"], "Ensembles": ["ensemble"]}
    return compare(scores, baselines={"kep": "softmax", "ensemble": "softmax"}, metrics=METRICS, groups=groups)


class Page(HTMLParser):
    """Parser that collects the rows of a table as texts, bold ones between stars."""

    def __init__(self, html):
        super().__init__()
        self.rows = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "strong":
            self.rows[-1][-1] += "**"

    def handle_endtag(self, tag):
        if tag == "strong":
            self.rows[-1][-1] += "**"

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


def read_markdown(text):
    return Page(MarkdownIt("commonmark").enable("table").render(text.split("\n\n")[0])).rows


UNESCAPED = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textbar{}": "|",
    r"\textless{}": "<", r"\textgreater{}": ">", "{[}": "[", "{]}": "]", "{*}": "*", "$-$": "-", r"$\pm$": "±",
    **{rf"\{character}": character for character in "{}$&#_%"},
}  # fmt: skip


def read_latex(text):
    """Return rows of cells; assert that braces and dollars balance and that rows fill the columns."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    count = len(re.fullmatch(r"\\begin\{tabular\}\{(lr*)\}", lines[0]).group(1))
    assert [lines[1], *lines[-2:]] == [r"\toprule", r"\bottomrule", r"\end{tabular}"]
    rows = []
    for line in (line for line in lines[2:-2] if line != r"\midrule"):
        bare = re.sub(r"\\.", "", line.removesuffix(r" \\"))
        assert bare.count("$") % 2 == 0
        assert bare.count("{") == bare.count("}")
        assert not bare.lstrip().startswith(("[", "*"))  # an option of the \\ before it
        cells = [cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\"))]
        assert len(cells) == count
        pattern = "|".join(map(re.escape, UNESCAPED))
        rows.append([re.sub(pattern, lambda match: UNESCAPED[match.group()], cell) for cell in cells])
    return rows


def test_markdown_has_values_differences_and_the_best():
    text = markdown(comparison_table(comparison()))
    assert read_markdown(text) == [["method", "ACC % ↑", "NLL ×10 ↓", "AUROC % ↑"], *ROWS]
    assert "over 1 to 3 seeds" in text
    assert "95 % interval" in text


def test_latex_has_the_same_cells():
    head, *rows = read_latex(latex(comparison_table(comparison())))
    assert head == ["method", r"ACC % $\uparrow$", r"NLL $\times$10 $\downarrow$", r"AUROC % $\uparrow$"]
    plain = [[re.sub(r"\\textbf\{(.*)\}", r"**\1**", cell).replace("--", "–") for cell in row] for row in rows]
    assert plain == ROWS


label = st.text(st.sampled_from(list(NASTY)), min_size=1, max_size=12).map(lambda t: " ".join(t.split())).filter(bool)


@settings(deadline=None, max_examples=100)
@given(st.lists(label, min_size=2, max_size=2, unique=True), label)
def test_any_name_survives_every_format(names, title):
    first, second = names
    metrics = {"x": MetricDisplay(title, 1, higher_is_better=True)}
    scores = {first: {0: {"x": 1.0}}, second: {0: {"x": 2.0}}}
    table = comparison_table(compare(scores, metrics=metrics, baselines={second: first}))
    expected = [first, second, f"minus {first}"]
    assert [row[0] for row in read_markdown(markdown(table))] == ["method", *expected]
    assert [row[0] for row in read_latex(latex(table))] == ["method", *expected]
    assert [str(cell) for cell in terminal(table).columns[0].cells] == expected
