"""Files of a reproduced table or figure: Markdown, CSV and SVG."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from probattn.experiments.plots import style
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting.table_formats import markdown
from probattn.experiments.reporting.tables import Table, heading, plain_table
from probattn.experiments.studies import against_paper
from probattn.experiments.studies.against_paper import Compared
from probattn.experiments.studies.entries import Part
from probattn.experiments.studies.reproduce import Plan, measured
from probattn.experiments.studies.reproduced_figures import FIGURES
from probattn.inference.io.files import write_bytes


def compared(plan: Plan) -> list[Compared]:
    """Return the blocks of a plan whose runs are done, compared with the paper unless the size is reduced."""
    full = not plan.scale.label
    return [
        against_paper.compare_part(part, measured(plan, part), trials=plan.entry.trials, with_paper=full)
        for part in plan.parts
    ]


def write(plan: Plan, found: list[Compared], out: Path) -> list[Path]:
    """Write ``OUT/NAME.md`` and ``.csv``, and a figure's ``.svg``; a reduced size is in the names and titles."""
    path = out / (plan.entry.name + (f"-reduced-{plan.scale.name}" if plan.scale.label else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    if plan.entry.figure:
        for part in plan.parts:
            for name, figure in FIGURES[plan.entry.figure](plan, part).items():
                if figure is not None:
                    paths.append(path.with_name("-".join(filter(None, (path.name, name))) + ".svg"))
                    label_size(figure, plan.scale.label)
                    save_figure(paths[-1], figure)
    texts = {".md": report(plan, found, figures=paths), ".csv": against_paper.csv_text(found)}
    for suffix, text in texts.items():
        paths.append(path.with_name(path.name + suffix))
        write_bytes(paths[-1], text.encode())
    return paths


def label_size(figure: Figure, label: str) -> None:
    """Write the label of a reduced size, if there is one, above a figure, before the note that it has there."""
    if label:
        note = "; ".join(filter(None, (label, figure.get_suptitle())))
        figure.suptitle(note, x=0.005, ha="left", **style.LABEL)


def report(plan: Plan, found: list[Compared], *, figures: list[Path]) -> str:
    """Return the Markdown of a reproduced table or figure."""
    entry, label = plan.entry, plan.scale.label
    lines = [f"# {entry.name}: {entry.title}{f', {label}' if label else ''}", "", f"{entry.source}. {size(plan)}", ""]
    lines += [line for path in figures for line in (f"![{path.stem}]({path.name})", "")]
    for each in found:
        lines += [f"## {each.part.title}{f', {label}' if label else ''}", ""]
        lines += [markdown(table) for table in against_paper.tables(each)]
        if label and each.part.paper:
            lines += ["The paper's numbers, at full size, with which the above cannot be compared:", ""]
            lines.append(markdown(_paper_table(each.part)))
    for text, titles in plan.missing.items():
        lines += [f"Missing for {'; '.join(titles)}: {text}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def size(plan: Plan) -> str:
    """Return in words how many runs there are, of how many epochs, and how they were reduced."""
    seeds = len({job.seed for job in plan.jobs})
    parts = [f"{len(plan.jobs)} runs, {seeds} seed{'s' if seeds > 1 else ''}."]
    if plan.scale.label:
        changed = {}
        for job in plan.jobs:
            whole, reduced = job.model.settings, job.settings
            flat = whole.flat()
            names = [f"{key}={value}" for key, value in reduced.flat().items() if _is_size(key) and flat[key] != value]
            changed[reduced.data.name, f"{reduced.epochs} of {whole.epochs} epochs", *names] = None
        parts += [f"Reduced on {name}: {', '.join(texts)}." for name, *texts in changed]
    return " ".join(parts)


def _is_size(key: str) -> bool:
    return key.startswith("network.") or key == "data.limit"


def _paper_table(part: Part) -> Table:
    rows = []
    for name, numbers in part.paper.items():
        values = ((numbers.get(column.key), against_paper.decimals_of(column)) for column in part.columns)
        rows.append((name, *(against_paper.paper_cell(*each) for each in values)))
    return plain_table(("the paper", *(heading(each.display) for each in part.columns)), rows)
