"""``probattn export``: a trained run for other programs and other people."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import COUNT, Sets, say, writable

OUT = "Folder to share (no suffix), or a file .pt2 for a PyTorch program."
SAMPLES = "Samples in a program; 0: one pass at the posterior mean; default: as predict."


def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(callback=writable, help=OUT)],
    push_to_hub: Annotated[str | None, typer.Option(metavar="USER/NAME", help="Also upload the folder.")] = None,
    num_samples: Annotated[int | None, typer.Option(min=0, max=COUNT["max"], help=SAMPLES)] = None,
    sets: Sets = "plain",
) -> None:
    """Export a run: as a folder to share, or as a program that runs without this library.

    Programs give probabilities, calibrated if the run was evaluated, with conformal sets and accepted answers, and
    their uncertainty over posterior samples. Share folders: a PyTorch program from elsewhere can run code when it is
    loaded.
    """
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.experiments.sharing.programs import export_program
    from probattn.inference import upload_pretrained

    pipeline = Pipeline.from_pretrained(run)
    if out.suffix:
        if push_to_hub is not None:
            raise ValueError(f"a folder is uploaded, and {out} is a file: leave its suffix or --push-to-hub out")
        about = export_program(pipeline, out, num_samples=num_samples, by_class=sets == "by-class")
        say(f"{out}: takes {about['takes']}; gives {', '.join(about['gives'])}")
        return
    pipeline.save_pretrained(out)
    say(f"{out}: weights, settings, preprocessing and a model card, whose licence is left to you")
    if push_to_hub is not None:
        say(upload_pretrained(out, push_to_hub))
