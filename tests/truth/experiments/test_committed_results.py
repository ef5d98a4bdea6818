"""The committed results give the figure and the tables of the pages."""

import re
import runpy
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from probattn.experiments.evaluation.evaluated_run import mean_shifts
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import to_svg
from probattn.inference.metrics import OF_CLASSES

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"
PAGES = {"results": RESULTS / "README.md", "evidence": ROOT / "docs" / "when-does-it-help.md"}
GP = "(layer.mean=softmax, layer.amplitude=1.0, layer.guide_scale=1.0)"
SETS = {
    "": "test",
    "shifted": "shift/mean/1-3-5",
    "out of domain": "domain/out-of-domain",
    "photometric": "shift/photometric",
    "other": "shift/other",
}
CONTROLS = {
    "RBF support vectors": "softmax",
    "small CNN": "softmax",
    "RFF-GPA": "rff-gpa",
    "exact GP": "exact-gp",
    "L2 softmax": "l2-softmax",
    "three softmax networks": "softmax, ensemble of 3",
}
START = "(positions 0.02)"
BETTER = "(positions 0.5, dropout 0.2)"
TIMM = {
    "softmax": f"softmax {START}",
    "KEP-SVGP": f"kep-svgp {START}",
    "anchored": f"anchored {START}",
    "softmax, better": f"softmax {BETTER}",
    "KEP-SVGP, better": f"kep-svgp {BETTER}",
    "anchored, better": f"anchored {BETTER}",
    "KEP-SVGP, better, all": f"kep-svgp, all blocks {BETTER}",
    "anchored, better, all": f"anchored, all blocks {BETTER}",
}
METHODS = {
    "RBF support vectors": "baseline/svm",
    "small CNN": "baseline/cnn",
    "anchored readout": "anchored",
}
"""Row → method, where it is not that of the others."""
NAMES = {"KEP-SVGP": "kep-svgp", "sparse CGP": "sparse-cgp"}
TABLES = {
    ("results", "Digits, images as they are"): ("digits", "posterior", "digits/{}", {}),
    ("results", "CoLA, learned words"): ("cola", "posterior", "{}", {}),
    ("results", "Digits, images standardised"): (
        "digits-standardised",
        "temperature",
        "digits/{} (network.standardise=true)",
        NAMES,
    ),
    ("evidence", "Digits"): (
        "digits-splits",
        "temperature",
        "digits/{}",
        NAMES | CONTROLS,
    ),
    ("evidence", "A network of others"): ("timm-digits", "temperature", "timm/{}", TIMM),
    ("evidence", "MNIST"): ("mnist-splits", "temperature", "mnist/{}", NAMES | CONTROLS),
    ("evidence", "CIFAR-10"): (
        "cifar10-splits",
        "temperature",
        "cifar10/{}",
        NAMES | CONTROLS,
    ),
    ("evidence", "IMDB"): (
        "imdb",
        "temperature",
        "kep-svgp/imdb{}",
        {
            "softmax": "-softmax",
            "KEP-SVGP": "",
            "anchored, 16 anchors": "-softmax anchored (layer.anchors=16)",
        },
    ),
    ("evidence", "CoLA"): (
        "minilm-cola",
        "temperature",
        "minilm-cola/{}",
        {
            "KEP-SVGP": "kep-svgp",
            "anchored readout": "softmax",
            "three softmax networks": "softmax, ensemble of 3",
        },
    ),
    ("evidence", "IMDB by MiniLM"): (
        "minilm-imdb",
        "temperature",
        "minilm-imdb/{}",
        {"KEP-SVGP": "kep-svgp", "anchored readout": "softmax"},
    ),
}
"""Page and section of a table → study, method, name of a run, and what a row's name is there."""
OTHER_STUDIES = {"MNIST": ("timm-mnist", "timm-mnist/{}")}
"""End of a column's title → study and name of a run, if the column is not of the table's study."""


@cache
def means(study):
    """Return the mean over seeds by run, method, test set and metric."""
    lines, keys = pd.read_csv(RESULTS / f"{study}.csv"), ["run", "method", "set", "metric"]
    if "mean" in lines:
        return lines.groupby(keys)["mean"].first()
    if lines["set"].str.startswith("shift/fog").any():
        lines = pd.concat([lines, mean_shifts(lines)])
    return lines.melt(id_vars=[*lines.columns[:5]], var_name="metric").groupby(keys)["value"].mean()


@cache
def evidence():
    """Return the file of the figure of evidence, and what it shows."""
    page = runpy.run_path(str(ROOT / "docs" / "evidence.py"))
    compared = page["comparison"]()
    return page["FIGURE"], compared, page["CLAIMS"], page["claims"](compared)


def agrees(text, value):
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 10.0**-digits * (0.5 + 1e-6)


@pytest.mark.parametrize("table", TABLES, ids="/".join)
def test_the_tables_of_the_pages_are_those_of_the_files(table):
    (page, section), (study, method, name, runs) = table, TABLES[table]
    text = PAGES[page].read_text("utf-8").replace("−", "-").partition(f"\n## {section}\n")[2]
    header, _, *rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    columns = [re.match(r" (\S+) [^↑↓]*[↑↓] ?(.*) ", cell) for cell in header.split("|")[2:-1]]
    keys = {metric.title: key for key, metric in OF_CLASSES.items()}
    for row in rows:
        label, *cells = re.sub(r"[*\\]", "", row).split("|")[1:-1]
        run, _, ensemble = label.strip().partition(", ensemble of ")
        by = f"ensemble of {ensemble}" if ensemble else METHODS.get(run, method)
        for column, cell in zip(columns, cells, strict=True):
            if column is not None:  # the number of seeds has no direction
                metric, place = keys[column[1]], column[2].strip()
                of_study, named = OTHER_STUDIES.get(place, (study, name))
                test_set = "test" if place in OTHER_STUDIES else SETS[place]
                key = (named.format(runs.get(run, run)), by, test_set, metric)
                value = OF_CLASSES[metric].scale * means(of_study).loc[key]
                assert agrees(cell.strip(), value), (row, key)


def test_the_baseline_of_the_reviews_is_that_of_its_file():
    row = (
        pd.read_csv(RESULTS / "baselines.csv").set_index(["task", "baseline"]).loc["IMDB", "tf-idf"]
    )
    text = PAGES["evidence"].read_text(encoding="utf-8")
    pattern = r"linear model, (\d+) CPU seconds: NLL ×10 ([\d.]+), ACC ([\d.]+) %"
    seconds, nll, accuracy = re.search(pattern, text).groups()
    assert agrees(nll, 10 * row["nll"])
    assert agrees(accuracy, 100 * row["accuracy"])
    assert float(seconds) == pytest.approx(row["cpu_seconds"], abs=0.5)


LABELS = {
    "digits": "digits, 20 splits",
    "MNIST": "MNIST, 20 splits",
    "CIFAR-10": "CIFAR-10, 5 splits",
}
"""Section of the page → label in the figure, where it is another."""


@cache
def intervals():
    """Return the names of the script of the intervals, and its committed file."""
    script = runpy.run_path(str(ROOT / "docs" / "intervals.py"))
    return script, script["FILE"].read_text(encoding="utf-8")


@pytest.mark.parametrize("study", ["timm-digits", "timm-mnist"])
def test_the_intervals_of_a_study_are_those_of_its_kept_predictions(study):
    script, written = intervals()
    assert script["table"](study) in written


def test_in_all_blocks_of_timms_vit_kep_svgp_and_anchored_attention_gain_on_mnist():
    written = intervals()[1].partition("\n## timm-mnist\n")[2].partition("\n## ")[0]
    differences = written.partition(f"| minus softmax {BETTER}")[2].partition("\n\n")[0]
    starred = {}
    for line in differences.splitlines()[2:]:
        row, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        starred[row] = [cell.endswith(r"\*") for cell in cells]
    gains = [True, True, False, True, True]  # accuracy, NLL, ECE, AURC and refinement
    assert starred[f"kep-svgp, all blocks {BETTER}"] == gains
    assert starred[f"anchored, all blocks {BETTER}"] == gains
    assert starred[f"rff-gpa, all blocks {BETTER}"] == [False, False, False, True, True]
    assert not any(starred[f"l2-softmax, all blocks {BETTER}"])


@pytest.mark.parametrize("part", ["others", "unknown"])
def test_the_intervals_of_other_studies_are_those_of_their_scores(part):
    script, written = intervals()
    assert script[part]() in written


NUMBERS = r"([+-]?[\d.]+) \[(-?[\d.]+),\s(-?[\d.]+)\]"


def committed_intervals():
    """Return each difference with its interval in the committed file, and the beginning of its
    column's title."""
    columns = []
    for line in intervals()[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| minus") or line.startswith("| |"):
            columns = cells
        for title, cell in zip(columns, cells, strict=False):
            for numbers in re.findall(NUMBERS, cell):
                yield title.partition(" ")[0], numbers


def agrees_as_printed(text, printed):
    """Whether a number is another one, which has two decimals at most, or that rounded again."""
    digits = len(text.partition(".")[2])
    rounding = 10.0**-digits + 10.0**-2 if digits < 2 else 0.0
    return abs(float(text) - float(printed)) <= 0.5 * rounding + 1e-9


def test_each_interval_of_the_page_is_one_of_the_committed_ones():
    text = PAGES["evidence"].read_text("utf-8").replace("−", "-")
    known = [*committed_intervals()]
    found = re.findall(rf"(?:(accuracy|NLL|ECE|AURC)(?: ×10³?)? )?{NUMBERS}", text)
    assert len(found) > 25
    for metric, *numbers in found:
        column = OF_CLASSES[metric.lower()].title if metric else None
        candidates = [printed for title, printed in known if column in (None, title)]
        assert any(all(map(agrees_as_printed, numbers, printed)) for printed in candidates), numbers


@pytest.mark.parametrize("section", ["digits", "MNIST", "CIFAR-10"])
def test_the_differences_of_anchored_attention_are_rounded_from_the_differences(section):
    table = evidence()[1]
    cells = table.cells[f"{LABELS.get(section, section)}: anchored"]
    text = PAGES["evidence"].read_text("utf-8").replace("−", "-")
    sentence = re.search(
        rf"\n## {section}\n.*?Anchored minus softmax attention: ([^.]*(?:\.\d[^.]*)*)",
        text,
        re.DOTALL | re.IGNORECASE,
    )[1]
    pattern = r"(accuracy|NLL|ECE|AURC)(?: ×10³?)? ([+-][\d.]+) \[([-\d.]+), ([-\d.]+)\]"
    found = re.findall(pattern, sentence)
    assert len(found) >= 3
    for name, *numbers in found:
        cell, scale = cells[name.lower()], table.metrics[name.lower()].scale
        for number, value in zip(numbers, (cell.difference, cell.low, cell.high), strict=True):
            assert agrees(number, scale * value), (name, number)


def test_the_differences_that_are_more_than_chance_are_those_of_the_page():
    table = evidence()[1]
    cells = {(row, key): cell for row, line in table.cells.items() for key, cell in line.items()}
    found = {place for place, cell in cells.items() if cell.significant}
    named = {}
    for row in (
        "MNIST, 20 splits: anchored",
        "MNIST, 20 splits: RFF-GPA",
        "CIFAR-10, 5 splits: anchored",
        "MNIST, timm's ViT: KEP-SVGP",
    ):
        named[row] = ("accuracy", "nll", "aurc")
    named["digits, timm's ViT: KEP-SVGP"] = ("accuracy", "nll")
    named["MNIST, 20 splits: ensemble of 3"] = ("accuracy", "nll", "aurc")
    named["CIFAR-10, 5 splits: ensemble of 3"] = ("accuracy", "nll", "aurc")
    named["MNIST, 20 splits: L2 softmax"] = ("accuracy", "nll", "aurc")
    named["CIFAR-10, 5 splits: L2 softmax"] = ("accuracy",)
    named["CoLA, MiniLM: bag of words"] = ("aurc",)
    for row in ("support vectors", "small CNN"):
        named[f"MNIST, 20 splits: {row}"] = ("accuracy", "nll", "ece", "aurc")
    assert found == {(row, key) for row, keys in named.items() for key in keys}
    others = ("support vectors", "small CNN", "ensemble of 3", "bag of words", "L2 softmax")
    of_layers = [row for row, _ in found if not row.endswith(others)]
    assert (len(cells), len(found), len(of_layers)) == (160, 33, 14)


def test_the_table_of_claims_is_that_of_the_results():
    _, _, committed, written = evidence()
    assert committed.read_text("utf-8") == written


def test_the_figure_is_that_of_the_committed_results():
    """Its texts, ticks among them, are those of a new drawing; lines may differ between versions of
    Matplotlib."""
    committed, table, *_ = evidence()
    figures = committed.read_bytes(), to_svg(differences(table))
    drawn, expected = (re.findall(r"<!-- (.*?) -->", svg.decode()) for svg in figures)
    assert drawn == expected


@pytest.mark.parametrize("kept", sorted(RESULTS.glob("*.parquet")), ids=lambda path: path.stem)
def test_all_rows_of_a_seed_predict_the_same_examples(kept):
    row = ["seed", "set", "run", "method"]
    examples = pd.read_parquet(kept, columns=[*row, "example"])
    of_rows = examples.groupby(row, observed=True)["example"]
    of_seeds = of_rows.agg(frozenset).groupby(["seed", "set"], observed=True)
    assert (of_seeds.nunique() == 1).all()


@pytest.mark.parametrize("kept", sorted(RESULTS.glob("*.parquet")), ids=lambda path: path.stem)
def test_the_scores_of_a_study_are_those_of_its_kept_predictions(kept):
    """But for the rounding of kept floats to 12 bits."""
    examples = pd.read_parquet(kept)
    is_right = examples["predicted"] == examples["label"]
    examples = examples.assign(accuracy=is_right, nll=-examples["log_prob"].astype(float))
    keys = ["run", "method", "seed"]
    found = examples.groupby(keys, observed=True)[["accuracy", "nll", "brier"]].mean()
    scores = pd.read_csv(kept.with_suffix(".csv"))
    scores = scores[scores["set"] == "test"].set_index(keys)
    assert len(found) > 10
    for row, values in found.iterrows():
        assert values.to_dict() == pytest.approx(scores.loc[row, found.columns].to_dict(), rel=1e-3)
