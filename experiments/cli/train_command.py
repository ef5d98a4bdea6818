"""``probattn presets`` and ``train``: list the presets, and train one, also on one's own data."""

import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import COUNT, fail, say, show_table
from probattn.models.layer_records import LAYERS

if TYPE_CHECKING:
    from probattn.experiments.config.schema import Trust
    from probattn.experiments.config.settings import Settings

DATA = "Your file or folder, or the folder of the data sets (default $PROBATTN_DATA, else ./data)."
LAYER = f"Layer: {', '.join(LAYERS)} or package.module:Class."
EPOCHS = "Total number of epochs, including a warm start; --resume takes a larger one."
CONFIG = "YAML file of settings; `probattn presets NAME --yaml` prints one."
RESUME = "Resume the run in --out; only epochs and train.patience may be raised."
NOTE = """\
Epochs A + B: a warm start with kernel attention (--set warm_start.epochs=A, or warm_start=none),
then the layer. `probattn presets NAME` lists the settings of one.
The first six are for your own data: see docs/your-own-data.md."""
YAML = "Print the settings as a file for `probattn train --config`."


def train(
    preset: Annotated[
        str | None, typer.Argument(metavar="[PRESET]", help="Name from `probattn presets`.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="PATH", help=DATA)] = None,
    layer: Annotated[str | None, typer.Option(metavar="NAME", help=LAYER)] = None,
    epochs: Annotated[int | None, typer.Option(**COUNT, help=EPOCHS)] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help=CONFIG)] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder; default runs/PRESET.")
    ] = None,
    set_: terminal.SettingChanges = None,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME)] = False,
    trust_code: terminal.TrustCode = False,
) -> None:
    """Train a preset. A run that was stopped at any moment continues with --resume."""
    from probattn.experiments.config.presets import with_layer
    from probattn.experiments.runs import train as runs

    # What was typed again in this command is the user's own, and not only the folder's.
    typed = {str(layer), *(change.partition("=")[2] for change in set_ or ())}
    name, settings, is_started = _base(
        preset, config, out=out, resume=resume, trust_code=trust_code or typed
    )
    settings = settings if layer is None else with_layer(settings, layer)
    settings, root = settings.with_changes(
        set_ or (), epochs=None if is_started else epochs
    ).with_data(data)
    if epochs is not None and is_started:  # the warm start keeps its own
        settings = settings.with_changes(
            [f"train.epochs={epochs - settings.epochs + settings.train.epochs}"]
        )
    folder = out or Path("runs") / name
    history = runs.train(settings, folder, name=name, root=root, resume=resume, say=say)
    if history.best_value is None:
        fail(
            "no epoch had a valid value to compare: choose another with --set train.monitor=METRIC"
        )
    done = max([history.best_epoch, *(record["epoch"] for record in history.epochs)])
    best = f"best epoch {history.best_epoch} of {done}"
    value = f"valid {settings.train.monitor or 'nll'} {history.best_value:.4f}"
    say(f"{best}, {value}; next: probattn evaluate {shlex.quote(str(folder))}")


def _base(
    preset: str | None, config: Path | None, *, out: Path | None, resume: bool, trust_code: "Trust"
) -> tuple[str, "Settings", bool]:
    """Return the name and settings to start from, and whether they are those of a run that is
    resumed."""
    from probattn.experiments.config import presets, yaml_files
    from probattn.experiments.runs.folder import SETTINGS, read_record

    folder = out or Path("runs") / (preset or "")
    if resume and config is None and (folder / SETTINGS).exists():
        record = read_record(folder, trust_code=trust_code)
        if preset in (None, record.name):
            return record.name, record.settings, True
    content = {} if config is None else yaml_files.read(config)
    name = content.pop("preset", preset)
    if name is None:
        fail(
            f"{folder} holds no run to resume: name a preset (`probattn presets` lists all), or a "
            "file with --config"
        )
    if preset not in (None, name):
        fail(f"{config} is for the preset {name}, not {preset}: give one of the two")
    return name, presets.preset(name).merged(content), False


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Preset whose settings are listed.")
    ] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help=YAML)] = False,
) -> None:
    """List the presets, or the settings of one with their meanings and choices."""
    from probattn.experiments.config.presets import PRESETS, preset
    from probattn.experiments.config.yaml_files import to_yaml

    if name is None:
        _list_presets(PRESETS)
    elif yaml:
        typer.echo(to_yaml(name, preset(name)), nl=False)
    else:
        _list_settings(preset(name))


def _list_presets(known: "dict[str, Settings]") -> None:
    table = Table(Column("preset", no_wrap=True), "network", "layer", "in blocks", "epochs")
    for name, settings in known.items():
        layer = settings.layer
        start = settings.warm_start
        epochs = (
            f"{start.epochs} + {settings.train.epochs}" if start else f"{settings.train.epochs}"
        )
        table.add_row(
            name,
            settings.network.kind,
            layer.name,
            f"last {layer.last}" if layer.last else "all",
            epochs,
        )
    show_table(table)
    say(NOTE)


def _list_settings(settings: "Settings") -> None:
    from probattn.experiments.config.presets import changed_defaults
    from probattn.experiments.config.schema import unmarked
    from probattn.experiments.config.settings import describe

    described = describe(settings)
    defaults = changed_defaults(settings)
    width = min(terminal.console.width, 100)
    for key, value in settings.flat().items():
        meaning, allowed = described.get(key, ("", []))
        of_layer = f" (layer: {_in_words(defaults[key])})" if key in defaults else ""
        say(f"{key} = {_in_words(value)}{of_layer}", style="bold")
        text = unmarked(meaning)
        if allowed:
            text += f" [{', '.join(allowed)}]"
        say(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    "))
    say("(layer: VALUE) is what the layer has by its name, where the preset changes it.")
    say("[VALUE, …] are all values that a setting takes.")
    say("Change any with --set SETTING=VALUE, or in the file that --yaml prints.")


def _in_words(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
