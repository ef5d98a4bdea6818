"""``probattn export``: a trained run for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import check_writable, say


def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Option(help="The file: .pt2 is a program of torch, .safetensors weights.")],
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="Posterior draws that the program averages over; default: its mean.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; default $PROBATTN_DATA, else ./data.")
    ] = None,
) -> None:
    """Write a run as a program that torch runs without this library, or its weights as safetensors."""
    from probattn.experiments.runs.export import export_run

    check_writable(out)
    say(export_run(run, out, num_samples=num_samples, seed=seed, root=data))
