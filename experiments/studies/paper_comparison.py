"""Our numbers beside a paper's: differences with intervals, tables, a page in Markdown, and a CSV
file."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.displayable import csv_text
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR
from probattn.experiments.evaluation.metric_display import MISSING, unit
from probattn.experiments.evaluation.seed_statistics import student_interval
from probattn.experiments.reporting.tables import Table, markdown
from probattn.experiments.studies import collect
from probattn.experiments.studies.reproduction import Plan, averaged_sets
from probattn.experiments.studies.study import Job
from probattn.inference.io.outputs import write_outputs

NOTE = """Mean ± standard deviation over seeds, below it the paper's.
In brackets the 95 % interval of the difference from the paper, * where it excludes 0.
It is of our seeds alone: the paper's number counts as exact."""
MARK = "probattn reproduce"
"""Text in the page, by which an earlier one is known."""


def results(plan: Plan) -> pd.DataFrame:
    """Return the cells of an entry, whose runs were evaluated, with our numbers and their
    differences from the paper's.

    Columns in the paper's unit: ``seeds``, ``ours``, ``ours_std``, ``difference``, ``low``,
    ``high``.
    """
    scores = {model: _scores(jobs) for model, jobs in plan.jobs.items()}
    lines = []
    for cell in plan.cells.to_dict("records"):
        values = by_seed(
            scores[cell["preset"], cell["changes"]],
            method=cell["method"],
            sets=averaged_sets(cell["set"]),
            metric=cell["metric"],
        )
        paper = cell["value"]
        if cell["metric"] == "seconds":  # of another machine
            paper = math.nan
        lines.append(cell | difference(cell["scale"] * values, paper))
    return pd.DataFrame(lines)


def by_seed(
    frame: pd.DataFrame,
    *,
    method: str,
    sets: Sequence[str],
    metric: str,
) -> pd.Series:
    """Return the mean of metrics, joined by ``+``, over test sets, by seed; seeds without all of
    them are left out."""
    methods = frame["method"].str.replace(rf"^{ENSEMBLE} of \d+$", ENSEMBLE, regex=True)
    chosen = frame[(methods == method) & frame["set"].isin(sets)].set_index("seed")
    values = chosen.reindex(columns=metric.split("+")).mean(axis=1, skipna=False)
    seeds = values.dropna().groupby(level=0)
    return seeds.mean()[seeds.size() == len(sets)]


def difference(values: pd.Series, paper: float) -> dict[str, float]:
    """Return our mean and standard deviation, and the difference from a paper's number with its 95
    % interval.

    Args:
        values: of our seeds.
        paper: the paper's number, which counts as exact; NaN if not given.

    Returns:
        ``low`` and ``high`` by Student's t, NaN for a single seed.
    """
    low, high = student_interval(values - paper)
    return {
        "seeds": len(values),
        "ours": values.mean(),
        "ours_std": values.std(),
        "difference": values.mean() - paper,
        "low": low,
        "high": high,
    }


def tables(cells: pd.DataFrame) -> dict[str, Table]:
    """Return the table of each block: a row of ours, and below it the paper's, if it has
    numbers."""
    shown = {}
    for block, in_block in cells.groupby("block", sort=False):
        rows = []
        for name, in_row in in_block.groupby("row", sort=False):
            ours, paper = {"": name}, {"": "the paper"}
            for cell in in_row.itertuples():
                ours[_heading(cell)] = _ours(cell)
                if not math.isnan(cell.value):
                    paper[_heading(cell)] = _number(cell, cell.value, cell.std)
            rows.append(ours)
            if len(paper) > 1:
                rows.append(paper)
        headings = dict.fromkeys(map(_heading, in_block.itertuples()))
        frame = pd.DataFrame(rows, columns=["", *headings])
        shown[block] = Table(frame.fillna(MISSING), NOTE)
    return shown


def write(plan: Plan, cells: pd.DataFrame, out: Path) -> Path:
    """Write ``OUT/NAME.md``, which is returned, and ``.csv``."""
    path = out / f"{plan.name}.md"
    page = f"<!-- {MARK} -->\n\n# {plan.title}\n\n{plan.note}\n"
    for block, table in tables(cells).items():
        page += f"\n## {block}\n\n{markdown(table)}"
    files = {path: page, path.with_suffix(".csv"): csv_text(cells)}
    write_outputs(files, mark=MARK)
    return path


def _scores(jobs: Sequence[Job]) -> pd.DataFrame:
    """Return the scores of a model's runs in the wide form, with the median seconds of an epoch as
    set ``log``."""
    folders = [job.folder for job in jobs]
    frame = collect.rows(collect.read_runs(folders, trust_code=jobs[0].settings.names()))
    logs = [pd.read_json(folder / "log.jsonl", lines=True) for folder in folders]
    seconds = pd.DataFrame(
        {
            "seed": range(len(jobs)),
            "method": POSTERIOR,
            "set": "log",
            "seconds": [log["seconds"].median() for log in logs],
        }
    )
    return pd.concat([frame, seconds])


def _heading(cell: Any) -> str:
    return f"{cell.title} {unit(cell.scale)}".strip()


def _ours(cell: Any) -> str:
    text = _number(cell, cell.ours, cell.ours_std)
    if math.isnan(cell.low):
        return text
    star = "*" if cell.low > 0 or cell.high < 0 else ""
    return f"{text} [{_number(cell, cell.low)}, {_number(cell, cell.high)}]{star}"


def _number(cell: Any, *values: float) -> str:
    """Return a number, and its standard deviation if it has one, with the decimals of the
    papers."""
    decimals = 3 if cell.scale == 1 and cell.metric != "seconds" else 2
    known = [f"{value:z.{decimals}f}" for value in values if not math.isnan(value)]
    return " ± ".join(known) or MISSING
