"""``probattn check-gpu``: what works on this machine's GPU, and how fast it is."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from probattn.experiments.cli.terminal import check_file, fail, interruptible, say, split_words


def check_gpu(
    stages: Annotated[
        list[str] | None,
        typer.Option(
            help="Comma-separated stages; default all: capture, solvers, attention, compiled, rollback, resume, "
            "epochs, profile, around, processes."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the answers, which a later call completes.")] = Path(
        "runs/gpu-check.json"
    ),
    minutes: Annotated[float, typer.Option(min=0, max=1440, help="No case starts after this time.")] = 9,
    device: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="cpu tries the checks themselves, small and without a GPU.")
    ] = "cuda",
) -> None:
    """Check a GPU: captured steps, factorisations, attention kernels, resuming, speed; say what to switch off.

    The answer of each case is written at once, and the same command continues after the last one.
    """
    with interruptible("the same command continues after the last case"):
        import torch

        from probattn.experiments.studies.gpu import check
        from probattn.experiments.studies.gpu.stage import Scope

        if device == "cuda" and not torch.cuda.is_available():
            fail("PyTorch finds no GPU here, so there is nothing to check")
        chosen = check.find(split_words(stages))
        check_file(out, option="--out")
        content = check.run(chosen, scope=Scope(device), path=out, minutes=minutes, say=say)
        say("\nverdict", style="bold")
        for line in check.verdict(content, scope=Scope(device)):
            say(line)
        say(f"answers: {out}")
