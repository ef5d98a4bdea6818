"""Tables of comparisons in Markdown and LaTeX."""

import math
import re

from evaluated_runs import score_frame

from probattn.experiments.evaluation.seed_statistics import compare
from probattn.experiments.reporting.tables import comparison_table, latex, markdown
from probattn.inference.metrics import OF_CLASSES

METRICS = {key: OF_CLASSES[key] for key in ("accuracy", "nll", "auroc")}
ROWS = [
    ["**Single models**", "", "", ""],
    ["softmax", "75.00 ± 8.66", "4.50 ± 0.50", "–"],
    ["kep", "**90.00 ± 10.00**", "3.50 ± 0.50", "–"],
    ["minus softmax", "[2.58, 27.42]*", "-1.00", ""],
    ["**Ensembles**", "", "", ""],
    ["ensemble", "95.00", "2.00", "75.00"],
    ["minus softmax", "+25.00", "-3.00", ""],
]


LATEX = {"{[}": "[", "{]}": "]", "{*}": "*", "$-$": "-", r"$\pm$": "±", "--": "–", r"\%": "%"}


def runs(accuracy, nll, auroc=math.nan):
    pairs = zip(accuracy, nll, strict=True)
    return {seed: {"accuracy": a, "nll": n, "auroc": auroc} for seed, (a, n) in enumerate(pairs)}


def comparison():
    """Differences of accuracy 0.20, 0.10, 0.15, whose interval is [0.02579, 0.27421]; of nll all
    −0.10."""
    scores = {
        "softmax": runs((0.70, 0.70, 0.85), (0.50, 0.40, 0.45)),
        "kep": runs((0.90, 0.80, 1.00), (0.40, 0.30, 0.35)),
        "ensemble": runs((0.95,), (0.2,), auroc=0.75),
    }
    groups = {"Single models": ["softmax", "kep"], "Ensembles": ["ensemble"]}
    return compare(
        score_frame(scores),
        baselines={"kep": "softmax", "ensemble": "softmax"},
        metrics=METRICS,
        groups=groups,
    )


def test_markdown_and_latex_have_values_differences_and_the_best():
    table = comparison_table(comparison())
    lines = [
        line.replace("\\", "") for line in markdown(table).splitlines() if line.startswith("|")
    ]
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    assert head == ["method", "ACC % ↑", "NLL ×10 ↓", "AUROC % ↑"]
    assert rows == ROWS
    assert "over 1 to 3 seeds" in markdown(table)
    assert r"\begin{tabular}{lrrr}" in latex(table)
    text = re.sub(r"\\textbf\{(.*?)\}(?= *[&\\])", r"**\1**", latex(table))
    for written, read in LATEX.items():
        text = text.replace(written, read)
    lines = [line.removesuffix(r" \\") for line in text.splitlines() if " & " in line]
    assert [[cell.strip() for cell in line.split("&")] for line in lines][1:] == ROWS


def test_any_name_of_a_run_stays_one_cell():
    scores = {r"50% of a_b & c|d": {0: {"nll": 1.0}}, "\x1b[31mred\n": {0: {"nll": 2.0}}}
    table = comparison_table(compare(score_frame(scores)))
    assert r"50\% of a\_b \& c\textbar{}d & " in latex(table)
    assert r"50% of a\_b \& c\|d" in markdown(table)
    assert "\x1b" not in latex(table) + markdown(table)
