"""docs/evidence.py: its rows are in the committed results, and say what the pages say."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "when-does-it-help.md", ROOT / "experiments" / "results" / "README.md"


@pytest.fixture(scope="module")
def evidence():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "docs" / "evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_row_has_an_interval_of_each_metric(evidence):
    table = evidence.comparison()
    assert len(table.rows) == 12
    for row in table.rows:
        for cell in table.cells[row].values():
            assert cell.low < cell.difference < cell.high


def test_the_differences_of_imdb_are_those_of_the_results_page(evidence):
    """No file has the seeds of these differences: the page is their only other place."""
    lines = [line for line in RESULTS.read_text().splitlines() if line.startswith("| *difference, 95 % interval*")]
    columns = {"accuracy": 0, "aurc": 1, "ece": 4, "nll": 5}
    rows = [row for row in evidence.ROWS if row.startswith("IMDB")]
    for row, line in zip(rows, lines, strict=True):
        found = re.findall(r"\+?(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", line.replace("−", "-"))
        for key, at in columns.items():
            cell, scale = evidence.comparison().cells[row][key], evidence.DISPLAY[key].scale
            expected = [scale * value for value in (cell.difference, cell.low, cell.high)]
            assert [float(value) for value in found[at]] == pytest.approx(expected), (row, key)


def test_a_row_that_is_not_compared_by_the_same_method_is_refused(evidence, monkeypatch):
    monkeypatch.setitem(evidence.ROWS, "IMDB: KEP-SVGP", ("imdb/test.csv", "kep-svgp/imdb"))
    with pytest.raises(ValueError, match="not over five seeds"):
        evidence.comparison()
    monkeypatch.setitem(evidence.ROWS, "IMDB: KEP-SVGP", ("digits/test.csv", "digits/kep-svgp + temperature scaling"))
    with pytest.raises(ValueError, match="compared with digits/softmax"):
        evidence.comparison()


def test_the_page_shows_the_figure(evidence):
    assert f"](figures/{evidence.FIGURE.name})" in PAGE.read_text()
    assert evidence.FIGURE.is_file()
