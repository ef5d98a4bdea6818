"""``probattn export``: a trained run for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, Data, check_file, say


def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(help="File to write: .pt2 for a PyTorch program, .safetensors for weights.")],
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Number of posterior samples in the program; default: posterior mean.")
    ] = None,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of the samples.")] = 0,
    data: Data = None,
) -> None:
    """Export a run as a program that PyTorch runs without this library, or its weights as safetensors.

    Share weights: a program from elsewhere can run code when it is loaded.
    """
    from probattn.experiments.runs.export import export_run

    check_file(out, option="--out")
    say(export_run(run, out, num_samples=num_samples, seed=seed, root=data))
