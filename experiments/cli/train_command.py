"""``probattn train``: train a preset, also on one's own data."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probattn.experiments.cli.terminal import (
    COUNT,
    MAX_RUNS,
    Encoder,
    SettingChanges,
    check_folder,
    encoder_change,
    existing,
    fail,
    interruptible,
    say,
)

if TYPE_CHECKING:
    from probattn.experiments.config.settings import Settings


def train(
    preset: Annotated[str | None, typer.Argument(metavar="[PRESET]", help="Name from `probattn presets`.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Your file or folder for vit/folder, text/csv, …; for other presets the existing folder of the data "
            "sets, default $PROBATTN_DATA, else ./data.",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Layer: softmax, kep-svgp, kernel, sgpa, cgp, sparse-cgp or package.module:Class."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(**COUNT, help="Epochs in all, including a warm start; with --resume also more than before."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file of settings; `probattn presets NAME --yaml` prints one."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=check_folder, help="Folder of the run; default runs/PRESET.")
    ] = None,
    set_: SettingChanges = None,
    encoder: Encoder = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNS, help="Train seeds 0 to N-1 into OUT/seed-0, ….")
    ] = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs trained at a time with --seeds, one thread each.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out; only epochs and train.patience may be raised.")
    ] = False,
) -> None:
    """Train a preset. A run that was stopped at any moment continues with --resume."""
    with interruptible("the same command with --resume continues after the last whole epoch"):
        from probattn.experiments.config.data import OwnDataSettings
        from probattn.experiments.config.layer_choice import with_layer
        from probattn.experiments.runs import seeds as sweep
        from probattn.experiments.runs import train as runs
        from probattn.experiments.runs.folder import epochs_done

        changes = [*(set_ or ()), *encoder_change(encoder)]
        if seeds is not None:
            sweep.check_seedless(changes)
        name, settings, started = _base(preset, config, out=out, resume=resume, seeds=seeds)
        settings = settings if layer is None else with_layer(settings, layer)
        root = None
        if data is not None and isinstance(settings.data, OwnDataSettings):
            changes.append(f"data.path={data}")
            if not settings.data.name.endswith("-hf"):
                existing(Path(data))
        elif data is not None:
            root = existing(Path(data))
            if root.is_file():
                fail(f"{data} is a file, and this preset takes the folder of the data sets; correct --data")
        settings = settings.with_changes(changes)
        if epochs is not None:
            settings = _more_epochs(settings, epochs) if started else settings.with_total_epochs(epochs)
        folder = out or Path("runs") / name
        options = {"name": name, "root": root, "resume": resume, "say": say}
        if seeds is not None:
            sweep.train_seeds(settings, folder, seeds=seeds, workers=workers, **options)
            place = shlex.quote(str(folder))
            say(f"next: probattn evaluate {place}; probattn compare {place}")
            return
        done = epochs_done(folder) if resume else 0
        history = runs.train(settings, folder, **options)
    if len(history.epochs) == done:
        say(f"{folder} was finished already, after {done} epochs; nothing to do")
    monitor = settings.train.monitor or "nll"
    if history.best_value is None:
        fail(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    say(
        f"best epoch {history.best_epoch} of {len(history.epochs)}, "
        f"valid {monitor} {history.best_value:.4f}; next: probattn evaluate {shlex.quote(str(folder))}"
    )


def _base(
    preset: str | None, config: Path | None, *, out: Path | None, resume: bool, seeds: int | None
) -> tuple[str, "Settings", bool]:
    """Return the name and settings to start from, and whether they are those of a run that is resumed."""
    from probattn.experiments.config import presets, yaml_files
    from probattn.experiments.runs.folder import read_record

    folder = out or Path("runs") / (preset or "")
    folder = folder if seeds is None else folder / "seed-0"
    if resume and config is None and (folder / "settings.json").exists():
        record = read_record(folder)
        if preset in (None, record.name):
            return record.name, record.settings, True
    content = {} if config is None else yaml_files.read(config)
    base = content.pop("preset", None)
    if None not in (preset, base) and preset != base:
        fail(f"{config} is for the preset {base}, not {preset}: leave one of the two out")
    if preset is None and base is None:
        if resume:
            fail(f"{out} holds no run to resume; name a preset to start one")
        where = f"add 'preset: NAME' to {config}" if config else "name one, or a file of settings with --config FILE"
        fail(f"no preset: {where}; `probattn presets` lists all")
    name = base if preset is None else preset
    return name, presets.preset(name).merged(content), False


def _more_epochs(settings: "Settings", epochs: int) -> "Settings":
    """Return the settings of a resumed run with another total of epochs; its warm start keeps its own."""
    first = settings.epochs - settings.train.epochs
    if epochs <= first:
        fail(f"--epochs counts those of the warm start, which are {first}; give more than {first}")
    return replace(settings, train=replace(settings.train, epochs=epochs - first))
