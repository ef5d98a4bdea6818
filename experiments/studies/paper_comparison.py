"""Our numbers beside a paper's: differences with intervals, a page in Markdown, a CSV file."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from scipy import stats

from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.metric_display import unit
from probattn.experiments.reporting import report
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
        if cell["set"] == "log":
            values = pd.Series([_seconds(job.folder) for job in plan.jobs[model]])
        else:
            sets = paper_cells.averaged_sets(cell["set"], severities=plan.severities)
            values = by_seed(frames[model], method=cell["method"], sets=sets, metric=cell["metric"])
        paper, std = (math.nan, math.nan) if plan.is_reduced or cell["set"] == "log" else (cell["value"], cell["std"])
        number = math.nan if cell["method"] == "ensemble" else trials
        lines.append(cell | difference(cell["scale"] * values, paper=paper, std=std, trials=number))
    return pd.DataFrame(lines)


def by_seed(frame: pd.DataFrame, *, method: str, sets: Sequence[str], metric: str) -> pd.Series:
    """Return the mean of metrics, joined by ``+``, over test sets, by seed; seeds without all of them are left out."""
    methods = frame["method"].str.replace(r"^ensemble of \d+$", "ensemble", regex=True)
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
    n, gap = len(values), values.mean() - paper
    ours, theirs = values.var(ddof=1) / max(n, 1), std**2 / trials
    row = {"seeds": n, "ours": values.mean(), "ours_std": values.std(ddof=1), "difference": gap}
    if math.isnan(ours) or math.isnan(gap) or ours == 0:
        return row | {"low": math.nan, "high": math.nan, "interval": ""}
    freedom, kind = n - 1.0, "own seeds"
    if theirs > 0:  # False for NaN
        freedom, kind = (ours + theirs) ** 2 / (ours**2 / (n - 1) + theirs**2 / (trials - 1)), "welch"
        ours += theirs
    half = stats.t.ppf(0.975, freedom) * math.sqrt(ours)
    return row | {"low": gap - half, "high": gap + half, "interval": kind}


def _seconds(folder: Path) -> float:
    """Return the median seconds of an epoch."""
    records = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return median(record["seconds"] for record in records if record["kind"] == "epoch")


def write(plan: Plan, table: pd.DataFrame, done: dict[Model, dict[str, Any]], out: Path) -> list[Path]:
    """Write ``OUT/NAME.md`` and ``.csv``, and for a figure ``.html``, the report of the first run of each row.

    The names of a reduced size end with ``-reduced-cpu``.
    """
    path = out / (plan.name + ("-reduced-cpu" if plan.is_reduced else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in ("md", "csv")]
    paths[0].write_text(markdown(plan, table), encoding="utf-8")
    table.to_csv(paths[1], index=False, lineterminator="\n")
    if "/figure-" in plan.name:
        paths.append(path.with_name(f"{path.name}.html"))
        sections = []
        for model, options in done.items():
            job, cells = plan.jobs[model][0], plan.cells[["preset", "changes", "row"]]
            row = cells[(cells["preset"] == model[0]) & (cells["changes"] == model[1])]["row"].iloc[0]
            result = evaluate(job.folder, root=job.root, convergence=False, **options).result
            sections.append(report.section(replace(result, name=row)))
        report.write(paths[-1], sections, title=plan.title)
    return paths


def markdown(plan: Plan, table: pd.DataFrame) -> str:
    """Return the page of an entry: a table a block, ours and below it the paper's."""
    about = "Mean ± standard deviation over seeds, below it the paper's."
    if plan.is_reduced:
        about += " The size is reduced: the numbers cannot be compared."
    else:
        about += " After ours the difference from the paper, in brackets its 95 % interval, * where it excludes 0; "
        about += "Welch's, or of our seeds alone where the paper gives no standard deviation or trials (see the CSV)."
    lines = [f"# {plan.title}", "", f"{about} {paper_cells.entries()['note'][plan.name]}".strip()]
    for block, cells in table.groupby("block", sort=False):
        rows = list(cells.itertuples())
        texts = {"head": [f"{cell.title} {unit(cell.scale)}".strip() for cell in rows], "ours": list(map(_ours, rows))}
        texts |= {"paper": [_number(cell.value, cell.std, cell) for cell in rows]}
        names, heads = cells["row"].unique(), list(dict.fromkeys(texts["head"]))
        wide = cells[["row"]].assign(**texts).pivot(index="row", columns="head").fillna("–")
        lines += ["", f"## {block}", "", f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for name in names:
            lines.append(f"| {name} | {' | '.join(wide['ours'].loc[name, heads])} |")
            if cells["value"].notna().any():
                lines.append(f"| *the paper* | {' | '.join(wide['paper'].loc[name, heads])} |")
    return "\n".join(lines) + "\n"


def _ours(cell: Any) -> str:
    text = _number(cell.ours, cell.ours_std, cell)
    if math.isnan(cell.difference):
        return text
    gap, low, high = (_number(value, math.nan, cell) for value in (cell.difference, cell.low, cell.high))
    sign, star = "+" if cell.difference >= 0 else "", "\\*" if cell.low > 0 or cell.high < 0 else ""
    return f"{text}, {sign}{gap}" + ("" if math.isnan(cell.low) else f" [{low}, {high}]{star}")


def _number(value: float, std: float, cell: Any) -> str:
    """Return a number with the decimals of the papers, and its standard deviation if it has one."""
    decimals = 3 if cell.scale == 1 and cell.set != "log" else 2
    return " ± ".join(f"{number:z.{decimals}f}" for number in (value, std) if not math.isnan(number)) or "–"
