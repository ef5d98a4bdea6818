"""``probattn export``: a trained run for other programs and other people."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, Sets, check_file, check_folder, say

OUT = "Folder to share (no suffix), or a file .pt2 for a PyTorch program."
MEAN = "Program of one pass at the posterior mean, without uncertainty over samples."


def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    push_to_hub: Annotated[str | None, typer.Option(metavar="USER/NAME", help="Upload the shared folder.")] = None,
    num_samples: Annotated[int | None, typer.Option(**COUNT, help="Samples in a program; default: as predict.")] = None,
    mean: Annotated[bool, typer.Option("--mean", help=MEAN)] = False,
    sets: Sets = "plain",
    calibration: Annotated[bool, typer.Option(help="Let a program give calibrated outputs.")] = True,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of the samples.")] = 0,
) -> None:
    """Export a run: as a folder to share, or as a program that runs without this library.

    Programs give probabilities, calibrated if the run was evaluated, with conformal sets and accepted answers, and
    their uncertainty over posterior samples. Share folders: a PyTorch program from elsewhere can run code when it is
    loaded.
    """
    if out is None and push_to_hub is None:
        raise ValueError("name a folder or a file to write with --out, or a model of the hub with --push-to-hub")
    if out is not None and out.suffix:
        if push_to_hub is not None:
            raise ValueError(f"a folder is uploaded, and {out} is a file: leave its suffix or --push-to-hub out")
        from probattn.experiments.sharing.programs import export_run

        check_file(out)
        options = {"mean": mean, "num_samples": num_samples, "seed": seed}
        say(export_run(run, out, **options, calibrated=calibration, by_class=sets == "by-class"))
        return
    if mean or num_samples is not None:
        raise ValueError("a shared folder holds the whole posterior: leave --num-samples and --mean out")
    from probattn.experiments.sharing.pipeline import Pipeline
    from probattn.inference import upload_pretrained

    check_folder(out)
    pipeline = Pipeline.from_run(run)
    if out is not None:
        pipeline.save_pretrained(out)
        say(f"{out}: weights, settings, preprocessing and a model card, whose licence is left to you")
    if push_to_hub is not None:
        say(pipeline.push_to_hub(push_to_hub) if out is None else upload_pretrained(out, push_to_hub))
