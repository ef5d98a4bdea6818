"""``probattn train``: train a preset, also on one's own data."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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


class _Request(NamedTuple):
    """Name and settings of a run, and the folder of its data if they are elsewhere than its settings say."""

    name: str
    settings: "Settings"
    root: Path | None


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
        from probattn.experiments.runs import train as runs
        from probattn.experiments.runs.folder import epochs_done

        changes = [*(set_ or ()), *encoder_change(encoder)]
        options = {"layer": layer, "epochs": epochs, "changes": changes, "data": data}
        folder = out or (None if preset is None else Path("runs") / preset)
        started = _started(folder, seeds is not None) if resume and folder is not None else None
        if started is not None and preset in (None, started.name) and config is None:
            request = _resumed(started, **options)
        else:
            request = _new(preset, config, out=out if resume else None, **options)
        name, settings, root = request
        folder = out or Path("runs") / name
        if seeds is not None:
            from probattn.experiments.runs import seeds as sweep

            sweep.check_seedless(changes)
            common = {"name": name, "root": root, "resume": resume, "workers": workers, "say": say}
            histories = sweep.train_seeds(settings, folder, seeds=seeds, **common)
            say(sweep.summary(histories, settings))
            runs = f"{shlex.quote(str(folder))}/seed-*"
            say(f'next: for run in {runs}; do probattn evaluate "$run"; done; probattn compare {runs}')
            return
        done = epochs_done(folder) if resume else 0
        history = runs.train(settings, folder, name=name, root=root, resume=resume, say=say)
    if len(history.epochs) == done:
        say(f"{folder} was finished already, after {done} epochs; nothing to do")
    monitor = settings.train.monitor or "nll"
    if history.best_value is None:
        fail(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    say(
        f"best epoch {history.best_epoch} of {len(history.epochs)}, "
        f"valid {monitor} {history.best_value:.4f}; next: probattn evaluate {shlex.quote(str(folder))}"
    )


def _new(
    preset: str | None,
    config: Path | None,
    *,
    out: Path | None,
    layer: str | None,
    epochs: int | None,
    changes: list[str],
    data: str | None,
) -> _Request:
    """Return the request for a new run; ``out`` is a folder to resume, in which there is none."""
    from probattn.experiments.config import presets, yaml_files
    from probattn.experiments.config.data import OwnDataSettings
    from probattn.experiments.config.layer_choice import with_layer

    content = {} if config is None else yaml_files.read(config)
    base = content.pop("preset", None)
    if preset is not None and base not in (None, preset):
        fail(f"{config} is for the preset {base}, not {preset}: leave one of the two out")
    name = base if preset is None else preset
    if name is None:
        if out is not None:
            fail(f"{out} holds no run to resume; name a preset to start one")
        where = f"add 'preset: NAME' to {config}" if config else "name one, or a file of settings with --config FILE"
        fail(f"no preset: {where}; `probattn presets` lists all")
    settings = presets.preset(name).merged(content)
    settings = settings if layer is None else with_layer(settings, layer)
    if data is not None and isinstance(settings.data, OwnDataSettings):
        changes, data = [*changes, f"data.path={_own(data, settings.data.name)}"], None
    settings = settings.with_changes(changes)
    settings = settings if epochs is None else settings.with_total_epochs(epochs)
    return _Request(name, settings, None if data is None else _root(data))


def _resumed(
    started: _Request,
    *,
    layer: str | None,
    epochs: int | None,
    changes: list[str],
    data: str | None,
) -> _Request:
    """Return the request for the rest of a run that was started."""
    from probattn.experiments.config.data import OwnDataSettings
    from probattn.experiments.config.layer_choice import with_layer

    settings = started.settings.with_changes(changes)
    settings = settings if layer is None else with_layer(settings, layer)
    if epochs is not None:
        first = settings.epochs - settings.train.epochs
        if epochs <= first:
            fail(f"--epochs counts those of the warm start, which are {first}; give more than {first}")
        settings = replace(settings, train=replace(settings.train, epochs=epochs - first))
    root = None
    if data is not None:
        is_own = isinstance(settings.data, OwnDataSettings)
        root = Path(_own(data, settings.data.name)) if is_own else _root(data)
    return _Request(started.name, settings, root)


def _started(folder: Path, seeds: bool) -> _Request | None:
    """Return the run that was started in a folder, the first one of several seeds; None if there is none."""
    from probattn.experiments.runs.folder import read_record

    folder = folder / "seed-0" if seeds else folder
    if not (folder / "settings.json").exists():
        return None
    record = read_record(folder)
    return _Request(record.name, record.settings, None)


def _root(path: str) -> Path:
    """Check that the folder of the data sets exists."""
    folder = existing(Path(path))
    if folder.expanduser().is_file():
        raise NotADirectoryError(f"{path} is a file, and this preset takes the folder of the data sets; correct --data")
    return folder


def _own(path: str, kind: str) -> str:
    """Check that a file or folder of a user's own data exists; a Hugging Face data set may be on the hub."""
    place = Path(path).expanduser()
    if not kind.endswith("-hf") and not (place.is_dir() or place.is_file()):
        raise FileNotFoundError(f"{path} does not exist; correct --data")
    return path
