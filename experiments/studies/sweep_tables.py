"""Tables of a sweep: Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from probattn.experiments.data.sealed_files import write_json
from probattn.experiments.evaluation.metric_display import format_value
from probattn.experiments.reporting.table_formats import csv_text, markdown
from probattn.experiments.reporting.tables import Bold, Table, plain_table
from probattn.experiments.studies.sweep import Candidate, Choice
from probattn.inference.io.files import write_bytes
from probattn.inference.metrics import MONITORS


def sweep_table(choices: Sequence[Choice]) -> Table:
    """Return the validation metric of each candidate by seed, and its mean; the chosen one is bold and says so."""
    seeds = [job.seed for job in choices[0].candidates[0].jobs]
    columns = ("candidate", *(f"seed {seed}" for seed in seeds), "mean", "chosen")
    rows: list[list[str]] = []
    for choice in choices:
        direction = "highest" if MONITORS[choice.monitor] else "lowest"
        title = f"{choice.preset}: validation {choice.monitor}, the {direction} is best"
        rows.append([Bold(title), *[""] * (len(columns) - 1)])
        for place, (candidate, values) in enumerate(zip(choice.candidates, choice.values, strict=True)):
            mark = Bold if place == choice.best else str
            numbers = [format_value(value, decimals=4) for value in (*values, fmean(values))]
            chosen = "yes" if place == choice.best else ""
            rows.append([", ".join(candidate.changes), *numbers[:-1], mark(numbers[-1]), mark(chosen)])
    return plain_table(columns, rows, note="Metric of each run's best epoch.")


def write(folder: Path, choices: Sequence[Choice]) -> list[Path]:
    """Write ``sweep.md``, ``sweep.csv`` (a line for each run) and ``sweep.json`` to a folder; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"sweep.{suffix}" for suffix in ("md", "csv", "json")]
    sentences = "".join(f"{choice}\n\n" for choice in choices)
    write_bytes(paths[0], f"{sentences}{markdown(sweep_table(choices))}".encode())
    write_bytes(paths[1], _csv(choices).encode())
    write_json(paths[2], {"presets": {choice.preset: _json(choice, folder) for choice in choices}})
    return paths


def _csv(choices: Sequence[Choice]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["preset", "candidate", "metric", "seed", "value", "chosen"])
    for choice in choices:
        for at, (candidate, values) in enumerate(zip(choice.candidates, choice.values, strict=True)):
            texts = [csv_text(text) for text in (choice.preset, ", ".join(candidate.changes), choice.monitor)]
            for job, value in zip(candidate.jobs, values, strict=True):
                number = "" if value != value else repr(value)
                writer.writerow([*texts, job.seed, number, "yes" if at == choice.best else "no"])
    return file.getvalue()


def _json(choice: Choice, folder: Path) -> dict:
    def entry(candidate: Candidate, values: Sequence[float]) -> dict:
        return {
            "changes": list(candidate.changes),
            "folder": candidate.jobs[0].folder.parent.relative_to(folder).as_posix(),
            "values": {str(job.seed): value for job, value in zip(candidate.jobs, values, strict=True)},
            "mean": fmean(values),
        }

    return {
        "monitor": choice.monitor,
        "higher_is_better": MONITORS[choice.monitor],
        "chosen": list(choice.changes),
        "candidates": [entry(*each) for each in zip(choice.candidates, choice.values, strict=True)],
    }
