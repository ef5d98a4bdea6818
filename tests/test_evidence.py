"""The committed results give the figure and the tables of the pages."""

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import to_svg

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
    return pd.read_csv(RESULTS / f"{study}.csv")


def statistics(study):
    """Return mean and standard deviation over seeds by run, method, test set and metric."""
    lines, keys = read(study), ["run", "method", "set", "metric"]
    if "mean" in lines:
        return lines.groupby(keys)[["mean", "std"]].first()
    long = lines.melt(id_vars=[*lines.columns[:5]], var_name="metric")
    return long.groupby(keys)["value"].agg(["mean", "std"])


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
            assert agrees(mean, DISPLAY[metric].scale * values.loc[key, "mean"]), (row, key)
            assert not std or agrees(std, DISPLAY[metric].scale * values.loc[key, "std"]), (row, key)
            checked += 1
    assert checked > 40


def test_the_figure_is_that_of_the_committed_results(evidence):
    """Its texts, ticks among them, are those of a new drawing; lines may differ between versions of Matplotlib."""
    drawn, expected = (
        re.findall(r"<!-- (.*?) -->", svg.decode())
        for svg in (evidence.FIGURE.read_bytes(), to_svg(differences(evidence.comparison())))
    )
    assert drawn == expected


def test_a_study_with_fewer_seeds_or_another_baseline_is_refused(evidence, monkeypatch, tmp_path):
    rows = [("cifar10", "kep-svgp/cifar10", "posterior", "test"), ("digits", "digits/kep-svgp", "posterior", "test")]
    assert evidence.cells(*rows[0])["nll"].n == 5
    lines = (RESULTS / "cifar10.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "cifar10.csv").write_text("\n".join(line for line in lines if "cifar10,4," not in line))
    (tmp_path / "digits.csv").write_text((RESULTS / "digits.csv").read_text(encoding="utf-8"))
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    assert evidence.cells(*rows[1])["nll"].low < 0
    monkeypatch.setitem(evidence.SOFTMAX, "digits", "digits/kernel")
    for row in rows:
        with pytest.raises(ValueError, match="other than 5 seeds"):
            evidence.cells(*row)


def test_imdbs_five_seeds_are_the_three_and_the_two_that_are_kept():
    seeds = (
        read("imdb-seeds").query("method == 'posterior'").set_index(["run", "seed"])[["accuracy", "nll", "ece", "aurc"]]
    )
    pairs = seeds.loc["kep-svgp/imdb"] - seeds.loc["kep-svgp/imdb-softmax"]
    assert len(pairs) == 2
    chosen = "run == 'kep-svgp/imdb' and method == 'posterior' and difference.notna()"
    three, five = (read(study).query(chosen).set_index("metric") for study in ("imdb-three-seeds", "imdb"))
    for metric, values in pairs.items():
        mean, low, high = three.loc[metric, ["difference", "low", "high"]]
        squares = 3 * (2 * ((high - low) / 2 / stats.t.ppf(0.975, 2)) ** 2 + mean**2) + np.square(values).sum()
        mean = (3 * mean + values.sum()) / 5
        half = stats.t.ppf(0.975, 4) * math.sqrt((squares - 5 * mean**2) / 4 / 5)
        expected = pytest.approx([mean, mean - half, mean + half], rel=1e-6, abs=1e-9)
        assert five.loc[metric, ["difference", "low", "high"]].tolist() == expected
