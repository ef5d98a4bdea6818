"""Our numbers beside a paper's: differences with intervals, tables, a page in Markdown, a CSV file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from scipy import stats

from probattn.experiments.evaluation.methods import ENSEMBLE
from probattn.experiments.evaluation.metric_display import MISSING, unit
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting import report
from probattn.experiments.reporting.table_formats import markdown
from probattn.experiments.reporting.tables import Table, plain_table
from probattn.experiments.studies import collect, paper_cells
from probattn.experiments.studies.reproduction import Model, Plan


def results(plan: Plan, done: Sequence[Model]) -> pd.DataFrame:
    """Return the cells of models that were evaluated, with our numbers and their differences from the paper's.

    Columns in the paper's unit: ``seeds``, ``ours``, ``ours_std``, ``difference``, ``low``, ``high``, ``interval``.
    """
    frames = {model: collect.rows([job.folder for job in plan.jobs[model]]) for model in done}
    trials = paper_cells.entries()["trials"][plan.name]
    lines = []
    for cell in plan.cells.to_dict("records"):
        model = cell["preset"], cell["changes"]
        if model not in frames:
            continue
        paper = {"paper": cell["value"], "std": cell["std"], "trials": trials}
        if cell["set"] == "log":
            values = pd.Series([_seconds(job.folder) for job in plan.jobs[model]])
        else:
            sets = paper_cells.averaged_sets(cell["set"], severities=plan.severities)
            values = by_seed(frames[model], method=cell["method"], sets=sets, metric=cell["metric"])
        if plan.is_reduced or cell["set"] == "log":
            paper = dict.fromkeys(paper, math.nan)
        lines.append(cell | difference(cell["scale"] * values, **paper))
    return pd.DataFrame(lines)


def by_seed(frame: pd.DataFrame, *, method: str, sets: Sequence[str], metric: str) -> pd.Series:
    """Return the mean of metrics, joined by ``+``, over test sets, by seed; seeds without all of them are left out."""
    methods = frame["method"].str.replace(rf"^{ENSEMBLE} of \d+$", ENSEMBLE, regex=True)
    chosen = frame[(methods == method) & frame["set"].isin(sets)].set_index("seed")
    means = chosen.reindex(columns=metric.split("+")).mean(axis=1, skipna=False).groupby(level=0)
    return means.agg(lambda values: values.mean(skipna=False) if len(values) == len(sets) else math.nan).dropna()


def difference(values: pd.Series, *, paper: float, std: float, trials: float) -> dict[str, Any]:
    """Return our mean and standard deviation, and the difference from a paper's number with its 95 % interval.

    Args:
        values: of our seeds, which are not paired with the paper's.
        paper, std, trials: the paper's mean, standard deviation and number of trials; NaN if not given.

    Returns:
        ``interval`` is ``welch``; or ``own seeds``, Student's t of our seeds alone, where the paper's number counts as
        exact; or empty for a single seed.
    """
    n, gap, variance = len(values), values.mean() - paper, values.var(ddof=1) / max(len(values), 1)
    row = {"seeds": n, "ours": values.mean(), "ours_std": values.std(ddof=1), "difference": gap}
    if not variance > 0 or math.isnan(gap):  # a single seed, or no number of the paper
        return row | {"low": math.nan, "high": math.nan, "interval": ""}
    theirs, freedom, kind = std**2 / trials, n - 1.0, "own seeds"
    if theirs > 0:  # False for NaN
        freedom = (variance + theirs) ** 2 / (variance**2 / (n - 1) + theirs**2 / (trials - 1))
        variance, kind = variance + theirs, "welch"
    low, high = stats.t.interval(0.95, freedom, gap, math.sqrt(variance))
    return row | {"low": low, "high": high, "interval": kind}


def tables(plan: Plan, cells: pd.DataFrame) -> dict[str, Table]:
    """Return the table of each block: a row of ours, and below it the paper's."""
    note = "Mean ± standard deviation over seeds, below it the paper's."
    if plan.is_reduced:
        note += " The size is reduced: the numbers cannot be compared."
    else:
        note += " After ours the difference from the paper, in brackets its 95 % interval, * where it excludes 0; "
        note += "Welch's, or of our seeds alone where the paper gives no standard deviation or trials (see the CSV)."
    shown = {}
    for block, in_block in cells.groupby("block", sort=False):
        heads = {cell.title: f"{cell.title} {unit(cell.scale)}".strip() for cell in in_block.itertuples()}
        rows = []
        for name, in_row in in_block.groupby("row", sort=False):
            by_title = {cell.title: cell for cell in in_row.itertuples()}
            rows.append([name, *(_ours(by_title[title]) if title in by_title else MISSING for title in heads)])
            if in_row["value"].notna().any():
                paper = {title: _number(cell, cell.value, cell.std) for title, cell in by_title.items()}
                rows.append(["the paper", *(paper.get(title, MISSING) for title in heads)])
        shown[block] = plain_table(["", *heads.values()], rows, note=note)
    return shown


def write(plan: Plan, cells: pd.DataFrame, done: Mapping[Model, RunResult], out: Path) -> list[Path]:
    """Write ``OUT/NAME.md`` and ``.csv``, and for a figure ``.html``, the report of the first run of each row.

    The names of a reduced size end with ``-reduced-cpu``.
    """
    path = out / (plan.name + ("-reduced-cpu" if plan.is_reduced else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in ("md", "csv", "html")]
    pages = [f"# {plan.title}\n", f"{paper_cells.entries()['note'][plan.name]}\n"]
    pages += [f"## {block}\n\n{markdown(table)}" for block, table in tables(plan, cells).items()]
    paths[0].write_text("\n".join(pages), encoding="utf-8")
    cells.to_csv(paths[1], index=False, lineterminator="\n")
    if "/figure-" not in plan.name:
        return paths[:2]
    names = cells.drop_duplicates(["preset", "changes"]).set_index(["preset", "changes"])["row"]
    sections = [report.section(replace(result, name=names[model])) for model, result in done.items()]
    report.write(paths[2], sections, title=plan.title)
    return paths


def _seconds(folder: Path) -> float:
    """Return the median seconds of an epoch."""
    records = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return median(record["seconds"] for record in records if record["kind"] == "epoch")


def _ours(cell: Any) -> str:
    text = _number(cell, cell.ours, cell.ours_std)
    if math.isnan(cell.difference):
        return text
    gap, low, high = (_number(cell, value) for value in (cell.difference, cell.low, cell.high))
    sign, star = "+" if cell.difference >= 0 else "", "*" if cell.low > 0 or cell.high < 0 else ""
    return f"{text}, {sign}{gap}" + ("" if math.isnan(cell.low) else f" [{low}, {high}]{star}")


def _number(cell: Any, *values: float) -> str:
    """Return a number, and its standard deviation if it has one, with the decimals of the papers."""
    decimals = 3 if cell.scale == 1 and cell.set != "log" else 2
    return " ± ".join(f"{value:z.{decimals}f}" for value in values if not math.isnan(value)) or MISSING
