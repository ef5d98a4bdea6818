"""docs/evidence.py: its rows are in the committed results, and say what the pages say."""

import csv
import importlib.util
import math
import re
from pathlib import Path

import pytest
from scipy import stats

from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.svg import to_svg

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "when-does-it-help.md", ROOT / "experiments" / "results"
LINE = "single models,{row},accuracy,{n},0.9,0.01,{baseline},0.01,0.005,0.015\n"


@pytest.fixture
def evidence():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "docs" / "evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(name):
    with (RESULTS / "imdb" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_row_has_an_interval_of_each_metric(evidence):
    table = evidence.comparison()
    assert table.rows == tuple(evidence.ROWS)
    for row in table.rows:
        for cell in table.cells[row].values():
            assert cell.low < cell.difference < cell.high


def test_the_figure_is_that_of_the_committed_results(evidence):
    """Its texts, ticks among them, are those of a new drawing; lines may differ between versions of Matplotlib."""
    found, expected = (
        re.findall(r"<!-- (.*?) -->", svg.decode())
        for svg in (evidence.FIGURE.read_bytes(), to_svg(differences(evidence.comparison())))
    )
    assert found == expected
    assert f"](figures/{evidence.FIGURE.name})" in PAGE.read_text(encoding="utf-8")


def test_imdbs_five_seeds_are_the_three_and_the_two_that_are_kept():
    seeds = {(line["row"], line["seed"], line["metric"]): float(line["value"]) for line in lines_of("seeds.csv")}
    three = {line["metric"]: line for line in lines_of("test.csv") if line["row"] == "kep-svgp/imdb"}
    for line in lines_of("differences.csv"):
        if line["row"] != "kep-svgp/imdb":
            continue
        known = three[line["metric"]]
        mean, half = float(known["difference"]), (float(known["high"]) - float(known["low"])) / 2
        squares = 3 * (2 * (half / stats.t.ppf(0.975, 2)) ** 2 + mean**2)  # of the three paired differences
        others = [
            seeds["kep-svgp/imdb", seed, line["metric"]] - seeds["kep-svgp/imdb-softmax", seed, line["metric"]]
            for seed in "34"
        ]
        squares += sum(value**2 for value in others)
        mean = (3 * mean + sum(others)) / 5
        half = stats.t.ppf(0.975, 4) * math.sqrt((squares - 5 * mean**2) / 4 / 5)
        expected = pytest.approx([mean, mean - half, mean + half], rel=1e-6, abs=1e-9)
        assert [float(line[key]) for key in ("difference", "low", "high")] == expected


def test_imdbs_differences_are_those_of_the_results_page(evidence):
    page = (RESULTS / "README.md").read_text(encoding="utf-8").replace("−", "-").splitlines()
    found = [line for line in page if line.startswith("| *difference, 95 % interval*")]
    columns = ("accuracy", "aurc", "auroc", "fpr95", "ece", "nll", "brier")
    for row, line in zip(("kep-svgp/imdb", "kep-svgp/imdb + temperature scaling"), found, strict=True):
        numbers = re.findall(r"\+?(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", line)
        kept = {each["metric"]: each for each in lines_of("differences.csv") if each["row"] == row}
        for key, texts in zip(columns, numbers, strict=True):
            for name, text in zip(("difference", "low", "high"), texts, strict=True):
                value = evidence.DISPLAY[key].scale * float(kept[key][name])
                unit = 10.0 ** -len(text.partition(".")[2])
                assert abs(value - float(text)) <= unit * (0.5 + 1e-9), (row, key, name)


@pytest.mark.parametrize(
    ("row", "baseline", "n", "error"),
    [
        ("a", "a-softmax", 4, "other than five seeds"),
        ("a + MC dropout", "a-softmax", 5, "not with softmax by the same method"),
        ("a + MC dropout", "a-softmax + temperature scaling", 5, "not with softmax by the same method"),
        ("a", "a (layer.mean=softmax)", 5, "not with softmax by the same method"),
    ],
)
def test_a_row_of_another_baseline_or_number_of_seeds_is_refused(
    evidence, tmp_path, monkeypatch, row, baseline, n, error
):
    header = "group,row,metric,n,mean,std,baseline,difference,low,high\n"
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    monkeypatch.setattr(evidence, "METRICS", ("accuracy",))
    monkeypatch.setattr(evidence, "ROWS", {"A": ("test.csv", row)})
    (tmp_path / "test.csv").write_text(header + LINE.format(row=row, baseline="a-softmax", n=5))
    if " + " not in row:
        assert evidence.comparison().cells["A"]["accuracy"].difference == 0.01
    (tmp_path / "test.csv").write_text(header + LINE.format(row=row, baseline=baseline, n=n))
    with pytest.raises(ValueError, match=error):
        evidence.comparison()
