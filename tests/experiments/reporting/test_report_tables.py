"""Tables of reports, in HTML and for the terminal: numbers, scales, arrows, the best in bold."""

import io
import math

import pytest
from rich.console import Console

from probattn.experiments.evaluation.metric_display import COLUMNS, DISPLAY, NUMBERS
from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.reporting import report
from probattn.experiments.reporting.table import metrics_table, to_table
from probattn.experiments.reporting.table_formats import terminal


@pytest.fixture
def run_with(result):
    """Function that builds the result of a run with given metrics."""
    base = {
        "accuracy": 0.5,
        "mcc": 0.25,
        "aurc": 0.04,
        "auroc": 0.8,
        "fpr95": 0.6,
        "ece": 0.1,
        "nll": 0.9,
        "brier": 0.3,
    }
    return lambda name, **changed: result(name, n=4, metrics=base | changed)


def test_html_table_has_scales_arrows_and_the_best_in_bold(run_with, read, tmp_path):
    first = run_with("first", accuracy=0.8351, aurc=0.0426, ece=0.12871)
    second = run_with("second", accuracy=0.8470, aurc=0.03515, ece=0.12869, nll=math.nan)
    head, *rows = read(tmp_path / "r.html", [first, second]).tables[0]
    titles = ["ACC ↑%", "MCC ↑%", "AURC ↓×10³", "AUROC ↑%", "FPR95 ↓%", "ECE ↓%", "NLL ↓×10", "Brier ↓%"]
    assert [cell["text"] for cell in head] == ["run", *titles]
    texts = [[cell["text"] for cell in row] for row in rows]
    assert texts[0] == ["first", "83.51", "25.00", "42.60", "80.00", "60.00", "12.87", "9.00", "30.00"]
    assert texts[1] == ["second", "84.70", "25.00", "35.15", "80.00", "60.00", "12.87", "–", "30.00"]
    best = [[cell["best"] for cell in row] for row in rows]
    assert best[0] == [False] * 9  # equal as shown is not better, and one number alone is no contest
    assert best[1] == [False, True, False, True, False, False, False, False, False]


def test_best_is_the_lowest_where_lower_is_better_and_ties_share_it(run_with, read, tmp_path):
    names = ("brier", "fpr95", "auroc")
    runs = [run_with(str(v), **dict.fromkeys(names, v)) for v in (0.2, 0.1, 0.1, 0.3, math.nan)]
    columns = {key: 1 + COLUMNS.index(key) for key in names}
    rows = read(tmp_path / "r.html", runs).tables[0][1:]
    for key, column in columns.items():
        expected = [False, False, False, True, False] if key == "auroc" else [False, True, True, False, False]
        assert [row[column]["best"] for row in rows] == expected
    table = metrics_table([("a", {"aurc": 9.5}), ("b", {"aurc": 10.5})], corner="run", mark_best=True)
    ((_, rows),) = table.groups
    entries = [row.entries[COLUMNS.index("aurc")] for row in rows]
    assert [(entry.text, entry.best) for entry in entries] == [("9500.00", True), ("10500.00", False)]  # not as text


def test_one_run_has_no_best(result, read, tmp_path):
    reader = read(tmp_path / "r.html", [result()])
    assert not any(cell["best"] for table in reader.tables for row in table for cell in row)
    assert "bold" not in reader.text


def terminal_table(results):
    return terminal(report.summary_table(results))


def is_bold(text):
    return [span.style for span in text.spans] == ["bold"]


def test_terminal_table_shows_the_same_numbers_and_best(run_with):
    table = terminal_table([run_with("first [b]", aurc=0.05), run_with("second", accuracy=0.25)])
    cells = [list(column.cells) for column in table.columns]
    assert [text.plain for text in cells[0]] == ["first [b]", "second"]
    assert [text.plain for text in cells[1]] == ["50.00", "25.00"]
    assert [is_bold(text) for text in cells[1]] == [True, False]
    assert [is_bold(text) for text in cells[2]] == [False, False]
    assert [is_bold(text) for text in cells[3]] == [False, True]  # AURC: lower is better
    assert str(table.columns[7].header) == "NLL ↓\n×10"
    output = Console(file=io.StringIO(), width=100)
    output.print(table)
    assert "first [b]" in output.file.getvalue()


def test_runs_of_before_there_was_an_mcc_show_a_dash_for_it(run_with, read, tmp_path):
    old, new = run_with("old"), run_with("new")
    del old.metrics["mcc"]
    rows = read(tmp_path / "r.html", [old, new]).tables[0][1:]
    assert [[cell["text"] for cell in row[:3]] for row in rows] == [["old", "50.00", "–"], ["new", "50.00", "25.00"]]
    column = list(terminal_table([old, new]).columns[2].cells)
    assert [text.plain for text in column] == ["–", "25.00"]


def test_posterior_and_variants_tables(probabilistic, read, tmp_path):
    run = probabilistic()
    tables = read(tmp_path / "r.html", [run]).tables
    posterior, variants = tables[-2:]
    row = [cell["text"] for cell in posterior[1]]
    assert row == ["network.blocks.0.attention.u", "120", "60", "0.5", "0.25"]
    assert [row[0]["text"] for row in variants] == ["each latent site is", "drawn from q", "drawn from the prior"]
    assert [cell["text"] for cell in variants[2][1:]] == ["43.21", "43.21", "432.10", *["43.21"] * 3, "4.32", "43.21"]
    assert variants[1][1]["text"] == f"{100 * run.metrics['accuracy']:.2f}"


def test_variants_of_local_sites_alone_are_shown_beside_the_missing_posterior(probabilistic, read, tmp_path):
    reader = read(tmp_path / "r.html", [probabilistic("cgp", posterior=[])])
    assert "no random variable that all examples share" in reader.text
    assert [row[0]["text"] for row in reader.tables[-1]] == [
        "each latent site is",
        "drawn from q",
        "drawn from the prior",
    ]
    assert "those that the examples share and those of a single example" in reader.text
    assert "posterior is their prior by design, as that of the output of CGP attention is" in reader.text


def test_every_metric_of_the_table_is_explained():
    assert set(report.MEANINGS) == {*COLUMNS, *NUMBERS}
    assert set(COLUMNS) <= set(DISPLAY)


def test_a_comparison_in_html_has_groups_spreads_and_differences(tmp_path, read, result, monkeypatch):
    seeds = {"a.b": (0.7, 0.7, 0.85), "c": (0.9, 0.8, 1.0)}
    scores = {row: {seed: {"accuracy": value} for seed, value in enumerate(each)} for row, each in seeds.items()}
    comparison = compare(scores, baselines={"c": "a.b"}, groups={"single": ["a.b"], "<more>": ["c"]})
    monkeypatch.setattr(report, "summary_table", lambda results: to_table(comparison))
    reader = read(tmp_path / "r.html", [result(n=4)])
    rows = [[cell["text"] for cell in row] for row in reader.tables[0]]
    assert rows == [
        ["method", "ACC ↑%"],
        ["single"],
        ["a.b", "75.00 ± 8.66"],
        ["<more>"],
        ["cvs a.b", "90.00 ± 10.00[2.58, 27.42]*"],
    ]
    assert "Mean ± standard deviation over 3 seeds." in reader.text
