"""``probattn demo``: train and compare layers on handwritten digits."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import CORES, COUNT, check_folder, interruptible, say, show_metrics

Out = Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and of the report.")]
Epochs = Annotated[int, typer.Option(min=3, max=COUNT["max"], help="Epochs of each run, including its warm start.")]
Layers = Annotated[str, typer.Option(help="Comma-separated layers of the digits presets, or all (each layer once).")]
Workers = Annotated[int, typer.Option(**COUNT, help="Runs at a time; default: one per core.")]


def demo(
    out: Out = Path("runs/demo"),
    epochs: Epochs = 20,
    layers: Layers = "softmax,kep-svgp,sparse-cgp",
    workers: Workers = CORES,
) -> None:
    """Train layers on digits and compare them on clean and on corrupted images, in tables and a report."""
    with interruptible("the same command continues after the last whole epoch"):
        from probattn.experiments.config import presets
        from probattn.experiments.reporting import report
        from probattn.experiments.runs import train
        from probattn.experiments.studies import study

        jobs = study.plan(presets.digits(layers), seeds=1, epochs=epochs, out=out)
        workers = min(workers, len(jobs))
        say(f"{len(jobs)} runs of {epochs} epochs, {workers} at a time; a run takes half a minute or more")
        for job in jobs:
            train.check(job.settings, job.folder, resume=True)
        longest_first = sorted(jobs, key=lambda job: job.settings.warm_start is None)  # slow layers have a warm start
        options = {"num_samples": 5, "shift": True, "severities": (3,)}
        done = study.run_jobs([replace(job, options=options) for job in longest_first], workers=workers, say=say)
        drawn = {job.folder: report.section(result) for job, result in done}  # while others still train
        sections = [drawn[job.folder] for job in jobs]
        results = [section.result for section in sections]
        for section in sections:
            say(f"{section.result.name}: {section.content['conclusion'][-1]}")
        show_metrics(report.summary_table(results))
        show_metrics(report.shift_table(results))
        report.write(out / "report.html", sections, title="probattn demo: handwritten digits")
    say(f"report: {out / 'report.html'}")
