"""``probattn train``: train a preset, also on one's own data."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import COUNT, existing, fail, say

if TYPE_CHECKING:
    from probattn.experiments.config.settings import Settings

DATA = "Your file or folder; for presets of named data sets the folder of those, default $PROBATTN_DATA, else ./data."
LAYER = "Layer: softmax, kep-svgp, kernel, sgpa, cgp, sparse-cgp or package.module:Class."
EPOCHS = "Epochs in all, including a warm start; with --resume also more than before."
CONFIG = "YAML file of settings; `probattn presets NAME --yaml` prints one."
SEEDS = {"min": 1, "max": terminal.MAX_RUNS, "help": "Train seeds 0 to N-1 into OUT/seed-0, …."}
RESUME = "Resume the run in --out; only epochs and train.patience may be raised."
Out = Annotated[Path | None, typer.Option(callback=terminal.check_folder, help="Folder; default runs/PRESET.")]


def train(
    preset: Annotated[str | None, typer.Argument(metavar="[PRESET]", help="Name from `probattn presets`.")] = None,
    data: Annotated[str | None, typer.Option(metavar="PATH", help=DATA)] = None,
    layer: Annotated[str | None, typer.Option(metavar="NAME", help=LAYER)] = None,
    epochs: Annotated[int | None, typer.Option(**COUNT, help=EPOCHS)] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help=CONFIG)] = None,
    out: Out = None,
    set_: terminal.SettingChanges = None,
    encoder: terminal.Encoder = None,
    seeds: Annotated[int | None, typer.Option(**SEEDS)] = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs trained at a time with --seeds, one thread each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME)] = False,
) -> None:
    """Train a preset. A run that was stopped at any moment continues with --resume."""
    with terminal.interruptible("the same command with --resume continues after the last whole epoch"):
        from probattn.experiments.config.data import OwnDataSettings
        from probattn.experiments.config.presets import with_layer
        from probattn.experiments.runs import seeds as sweep
        from probattn.experiments.runs import train as runs
        from probattn.experiments.runs.folder import epochs_done

        changes, root = [*(set_ or ()), *terminal.encoder_change(encoder)], None
        if seeds is not None:
            sweep.check_seedless(changes)
        name, settings, is_started = _base(preset, config, out=out, resume=resume, seeds=seeds)
        settings = settings if layer is None else with_layer(settings, layer)
        if data is not None and not settings.data.name.endswith("-hf"):
            existing(Path(data))
        if data is not None and isinstance(settings.data, OwnDataSettings):
            changes.append(f"data.path={data}")
        elif data is not None:
            root = Path(data)
            if root.is_file():
                fail(f"{data} is a file, and this preset takes the folder of the data sets; correct --data")
        settings = settings.with_changes(changes)
        if epochs is not None and is_started:  # the warm start keeps its own
            settings = settings.with_changes([f"train.epochs={epochs - settings.epochs + settings.train.epochs}"])
        elif epochs is not None:
            settings = settings.with_total_epochs(epochs)
        folder = out or Path("runs") / name
        options, place = {"name": name, "root": root, "resume": resume, "say": say}, shlex.quote(str(folder))
        if seeds is not None:
            sweep.train_seeds(settings, folder, seeds=seeds, workers=workers, **options)
            say(f"next: probattn evaluate {place}; probattn compare {place}")
            return
        done = epochs_done(folder) if resume else 0
        history = runs.train(settings, folder, **options)
    if len(history.epochs) == done:
        say(f"{folder} was finished already, after {done} epochs; nothing to do")
    if history.best_value is None:
        fail("no epoch had a valid value to compare: choose another with --set train.monitor=METRIC")
    say(f"{sweep.best_epoch(settings, history)}; next: probattn evaluate {place}")


def _base(
    preset: str | None, config: Path | None, *, out: Path | None, resume: bool, seeds: int | None
) -> tuple[str, "Settings", bool]:
    """Return the name and settings to start from, and whether they are those of a run that is resumed."""
    from probattn.experiments.config import presets, yaml_files
    from probattn.experiments.runs.folder import SETTINGS, read_record

    folder = (out or Path("runs") / (preset or "")) / ("" if seeds is None else "seed-0")
    if resume and config is None and (folder / SETTINGS).exists():
        record = read_record(folder)
        if preset in (None, record.name):
            return record.name, record.settings, True
    content = {} if config is None else yaml_files.read(config)
    name = content.pop("preset", preset)
    if name is None:
        fail(f"{folder} holds no run to resume: name a preset (`probattn presets` lists all), or a file with --config")
    if preset not in (None, name):
        fail(f"{config} is for the preset {name}, not {preset}: leave one of the two out")
    return name, presets.preset(name).merged(content), False
