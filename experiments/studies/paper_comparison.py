"""Our numbers beside a paper's: differences with intervals, tables, a page in Markdown, and a CSV
file."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from probattn.experiments.displayable import csv_text
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR
from probattn.experiments.evaluation.metric_display import MISSING, unit
from probattn.experiments.reporting.tables import Table, markdown
from probattn.experiments.studies import collect
from probattn.experiments.studies.reproduction import Plan, averaged_sets
from probattn.experiments.studies.study import Job
from probattn.inference.io.outputs import write_outputs

NOTE = """Mean ± standard deviation over seeds, below it the paper's.
In brackets the 95 % interval of the difference from the paper, * where it excludes 0.
It is of our seeds alone: the paper's number counts as exact."""


def results(plan: Plan) -> pd.DataFrame:
    """Return the cells of an entry, whose runs were evaluated, with our numbers and their
    differences from the paper's.

    Columns in the paper's unit: ``seeds``, ``ours``, ``ours_std``, ``difference``, ``low``,
    ``high``.
    """
    frames, lines = {model: _scores(jobs) for model, jobs in plan.jobs.items()}, []
    for cell in plan.cells.to_dict("records"):
        scores, sets = frames[cell["preset"], cell["changes"]], averaged_sets(cell["set"])
        values = by_seed(scores, method=cell["method"], sets=sets, metric=cell["metric"])
        paper = math.nan if cell["metric"] == "seconds" else cell["value"]  # of another machine
        lines.append(cell | difference(cell["scale"] * values, paper))
    return pd.DataFrame(lines)


def by_seed(frame: pd.DataFrame, *, method: str, sets: Sequence[str], metric: str) -> pd.Series:
    """Return the mean of metrics, joined by ``+``, over test sets, by seed; seeds without all of
    them are left out."""
    methods = frame["method"].str.replace(rf"^{ENSEMBLE} of \d+$", ENSEMBLE, regex=True)
    chosen = frame[(methods == method) & frame["set"].isin(sets)].set_index("seed")
    means = chosen.reindex(columns=metric.split("+")).mean(axis=1, skipna=False).groupby(level=0)
    return means.agg(
        lambda values: values.mean(skipna=False) if len(values) == len(sets) else math.nan
    ).dropna()


def difference(values: pd.Series, paper: float) -> dict[str, float]:
    """Return our mean and standard deviation, and the difference from a paper's number with its 95
    % interval.

    Args:
        values: of our seeds.
        paper: the paper's number, which counts as exact; NaN if not given.

    Returns:
        ``low`` and ``high`` by Student's t, NaN for a single seed.
    """
    gap = values.mean() - paper
    low, high = stats.t.interval(0.95, len(values) - 1, gap, values.sem())
    row = {"seeds": len(values), "ours": values.mean(), "ours_std": values.std()}
    return row | {"difference": gap, "low": low, "high": high}


def tables(cells: pd.DataFrame) -> dict[str, Table]:
    """Return the table of each block: a row of ours, and below it the paper's, if it has
    numbers."""
    lines, shown = list(cells.itertuples()), {}
    heads = [f"{cell.title} {unit(cell.scale)}".strip() for cell in lines]
    paper = [
        None if math.isnan(cell.value) else _number(cell, cell.value, cell.std) for cell in lines
    ]
    texts = cells.assign(head=heads, ours=[_ours(cell) for cell in lines], paper=paper).set_index(
        ["row", "head"]
    )
    for block, in_block in texts.groupby("block", sort=False):
        # In their order afterwards: unstack(sort=False) of pandas 2 puts values into wrong cells.
        frame = (
            in_block[["ours", "paper"]].stack(future_stack=True).unstack("head").dropna(how="all")
        )
        rows, heads = (list(in_block.index.unique(level)) for level in ("row", "head"))
        frame = frame.loc[rows, heads]
        frame.insert(0, "", [row if whose == "ours" else "the paper" for row, whose in frame.index])
        shown[block] = Table(frame.fillna(MISSING), NOTE)
    return shown


def write(plan: Plan, cells: pd.DataFrame, out: Path) -> Path:
    """Write ``OUT/NAME.md``, which is returned, and ``.csv``."""
    path, mark = out / f"{plan.name}.md", "probattn reproduce"
    pages = [f"<!-- {mark} -->\n", f"# {plan.title}\n", f"{plan.note}\n"]
    pages += [f"## {block}\n\n{markdown(table)}" for block, table in tables(cells).items()]
    write_outputs({path: "\n".join(pages), path.with_suffix(".csv"): csv_text(cells)}, mark=mark)
    return path


def _scores(jobs: Sequence[Job]) -> pd.DataFrame:
    """Return the scores of a model's runs in the wide form, with the median seconds of an epoch as
    set ``log``."""
    folders = [job.folder for job in jobs]
    frame = collect.rows(collect.read_runs(folders, trust_code=jobs[0].settings.names()))
    seconds = [
        pd.read_json(job.folder / "log.jsonl", lines=True)["seconds"].median() for job in jobs
    ]
    log = pd.DataFrame(
        {"seed": range(len(jobs)), "method": POSTERIOR, "set": "log", "seconds": seconds}
    )
    return pd.concat([frame, log])


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
    return (
        " ± ".join(f"{value:z.{decimals}f}" for value in values if not math.isnan(value)) or MISSING
    )
