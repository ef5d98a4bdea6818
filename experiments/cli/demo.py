"""``probattn demo``: train and compare layers on handwritten digits."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import COUNT, check_folder, interruptible, say, show_table


def demo(
    out: Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and of the report.")] = Path(
        "runs/demo"
    ),
    epochs: Annotated[
        int, typer.Option(min=3, max=COUNT["max"], help="Epochs of each run, including its warm start.")
    ] = 40,
    layers: Annotated[
        str, typer.Option(help="Comma-separated layers of the digits presets, or all (each layer once).")
    ] = "softmax,kep-svgp",
) -> None:
    """Train layers on digits, by default KEP-SVGP and softmax attention, and compare them in a table and a report."""
    with interruptible("the same command continues after the last whole epoch"):
        from probattn.experiments.config import presets
        from probattn.experiments.evaluation import evaluate as evaluation
        from probattn.experiments.reporting import posterior_words, report, table_formats
        from probattn.experiments.runs import train as runs

        results = []
        for name in presets.digits(layers):
            folder = out / name.partition("/")[2]
            settings = presets.preset(name).with_total_epochs(epochs)
            say(name, style="bold")
            runs.train(settings, folder, name=name, resume=True, say=say)
            results.append(evaluation.evaluate(folder).result)
            for sentence in posterior_words.warnings(results[-1]):
                say(sentence)
        show_table(table_formats.terminal(report.summary_table(results)))
        report.write(out / "report.html", results, title="probattn demo: handwritten digits")
    say(f"report: {out / 'report.html'}")
