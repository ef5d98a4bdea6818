"""The committed results give the figure and the tables of the pages."""

import csv
import importlib.util
import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.svg import to_svg

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
COLUMNS = {metric.title: key for key, metric in DISPLAY.items()}
METHODS = {
    "": "posterior",
    "temperature scaling": "temperature",
    "MC dropout": "mc-dropout",
    "KFLLLA": "laplace",
    "SV-DKL": "sv-dkl",
}
GP = "(layer.mean=softmax, layer.amplitude=1.0, layer.guide_scale=1.0)"
TABLES = {
    "digits/…": ("digits", "digits/{}", {}),
    "CoLA": (
        "finetune-cola",
        "finetune/cola{}",
        {
            "softmax": "-softmax",
            "KEP-SVGP": "",
            "softmax plus GP": f" {GP}",
            "KEP-SVGP, residual": " (layer.residual=0.1)",
            "KEP-SVGP, KL weight 0.1": " (train.kl_weight=0.1)",
            "sparse CGP": "-sparse",
        },
    ),
    "CoLA | seeds": ("cola", "{}", {}),
    "IMDB": (
        "imdb",
        "kep-svgp/imdb{}",
        {"softmax": "-softmax", "KEP-SVGP": "", "authors' form": "-paper"},
    ),
}
"""First heading of a table of the results page → study, name of a run, and what a row's name is there."""


@pytest.fixture
def evidence():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "docs" / "evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(study):
    with (RESULTS / f"{study}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def statistics(study):
    """Return run, method, test set, metric → mean and standard deviation over seeds."""
    lines = read(study)
    if "mean" in lines[0]:
        keys = ("run", "method", "set", "metric")
        return {tuple(line[key] for key in keys): (float(line["mean"]), float(line["std"] or "nan")) for line in lines}
    values = defaultdict(list)
    for line in lines:
        for metric in [*line][5:]:
            values[line["run"], line["method"], line["set"], metric].append(float(line[metric] or "nan"))
    return {
        key: (np.mean(each), np.std(each, ddof=1) if each[1:] else math.nan, len(each)) for key, each in values.items()
    }


def agrees(text, value):
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 10.0**-digits * (0.5 + 1e-6)


@pytest.mark.parametrize("heading", TABLES)
def test_the_tables_of_the_results_page_are_those_of_the_files(heading):
    study, name, runs = TABLES[heading]
    page = (RESULTS / "README.md").read_text(encoding="utf-8").replace("−", "-")
    start = page.index(f"| {heading} |")
    header, _, *rows = page[start : page.index("\n\n", start)].splitlines()
    values, checked = statistics(study), 0
    columns = [re.match(r" (\S+) [^↑↓]*[↑↓] ?(.*) ", cell) for cell in header.split("|")[2:-1]]
    for row in rows:
        label, *cells = re.sub(r"[*\\]", "", row).split("|")[1:-1]
        run, _, ensemble = label.strip().partition(", ensemble of ")
        run, _, title = run.partition(" + ")
        if "less " in run or run.startswith("difference"):
            continue
        method, run = f"ensemble of {ensemble}" if ensemble else METHODS[title], name.format(runs.get(run, run))
        if study == "imdb" and ensemble:
            continue
        for column, cell in zip(columns, cells, strict=True):
            if column is None:  # number of seeds
                continue
            metric, subject = COLUMNS[column[1]], column[2].strip()
            sets = {"": "test", "shifted": "shift/mean/1-3-5", "out of domain": "domain/out-of-domain"}
            key = (run, method, sets.get(subject, f"ood/{subject}"), metric)
            if key[2].startswith("ood"):
                key = (*key[:3], "entropy_auroc")
            mean, _, std = cell.strip().partition(" ± ")
            assert agrees(mean, DISPLAY[metric].scale * values[key][0]), (row, key)
            assert not std or agrees(std, DISPLAY[metric].scale * values[key][1]), (row, key)
            checked += 1
    assert checked > 40


def test_the_figure_is_that_of_the_committed_results(evidence):
    """Its texts, ticks among them, are those of a new drawing; lines may differ between versions of Matplotlib."""
    drawn, expected = (
        re.findall(r"<!-- (.*?) -->", svg.decode())
        for svg in (evidence.FIGURE.read_bytes(), to_svg(differences(evidence.comparison())))
    )
    assert drawn == expected


def test_a_study_with_fewer_seeds_or_another_baseline_is_refused(evidence, monkeypatch):
    row = ("cifar10", "kep-svgp/cifar10", "posterior", "test")
    assert evidence.cells(*row)["nll"].n == 5
    monkeypatch.setitem(evidence.SOFTMAX, "digits", "digits/kernel")
    lines = [line for line in evidence.read("cifar10") if line["seed"] != "4"]
    monkeypatch.setattr(evidence, "read", lambda study: lines if study == "cifar10" else read(study))
    for refused in (row, ("digits", "digits/kep-svgp", "posterior", "test")):
        with pytest.raises(ValueError, match="other than 5 seeds"):
            evidence.cells(*refused)


def test_imdbs_five_seeds_are_the_three_and_the_two_that_are_kept():
    run, plain = ("kep-svgp/imdb", "posterior"), ("kep-svgp/imdb-softmax", "posterior")
    seeds = {(line["run"], line["method"], line["seed"]): line for line in read("imdb-seeds")}
    three, five = (
        {line["metric"]: line for line in read(study) if (line["run"], line["method"]) == run and line["difference"]}
        for study in ("imdb-three-seeds", "imdb")
    )
    assert len(five) == 7
    for metric, line in five.items():
        mean, low, high = (float(three[metric][key]) for key in ("difference", "low", "high"))
        pairs = [float(seeds[*run, seed][metric]) - float(seeds[*plain, seed][metric]) for seed in "34"]
        squares = 3 * (2 * ((high - low) / 2 / stats.t.ppf(0.975, 2)) ** 2 + mean**2) + np.square(pairs).sum()
        mean = (3 * mean + sum(pairs)) / 5
        half = stats.t.ppf(0.975, 4) * math.sqrt((squares - 5 * mean**2) / 4 / 5)
        expected = pytest.approx([mean, mean - half, mean + half], rel=1e-6, abs=1e-9)
        assert [float(line[key]) for key in ("difference", "low", "high")] == expected
