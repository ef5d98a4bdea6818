"""``probattn train``: train a preset."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import (
    COUNT,
    MAX_RUNS,
    Data,
    Encoder,
    SettingChanges,
    check_folder,
    encoder_change,
    fail,
    interruptible,
    say,
)


def train(
    preset: Annotated[str, typer.Argument(help="Name from `probattn presets`.")],
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(callback=check_folder, help="Folder of the run; default runs/PRESET.")
    ] = None,
    set_: SettingChanges = None,
    encoder: Encoder = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNS, help="Train seeds 0 to N-1 into OUT/seed-0, ….")
    ] = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs trained at a time with --seeds, one thread each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
) -> None:
    """Train a preset. A run that was stopped at any moment continues with --resume."""
    with interruptible("the same command with --resume continues after the last whole epoch"):
        from probattn.experiments.config import presets
        from probattn.experiments.runs import train as runs

        changes = [*(set_ or ()), *encoder_change(encoder)]
        settings = presets.preset(preset).with_changes(changes)
        folder = out or Path("runs") / preset
        if seeds is not None:
            from probattn.experiments.runs import seeds as sweep

            sweep.check_seedless(changes)
            common = {"name": preset, "root": data, "resume": resume, "workers": workers, "say": say}
            histories = sweep.train_seeds(settings, folder, seeds=seeds, **common)
            say(sweep.summary(histories, settings))
            say(f"next: for run in {folder}/seed-*; do probattn evaluate $run; done; probattn compare {folder}/seed-*")
            return
        done = runs.epochs_done(folder) if resume else 0
        history = runs.train(settings, folder, name=preset, root=data, resume=resume, say=say)
    if len(history.epochs) == done:
        say(f"{folder} was finished already, after {done} epochs; nothing to do")
    monitor = settings.train.monitor or "nll"
    if history.best_value is None:
        fail(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    say(
        f"best epoch {history.best_epoch} of {len(history.epochs)}, "
        f"valid {monitor} {history.best_value:.4f}; next: probattn evaluate {folder}"
    )
