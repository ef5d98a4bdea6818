"""``probattn presets``: list the presets, or the settings of one."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from probattn.experiments.cli.terminal import fail, say, show_table

if TYPE_CHECKING:
    from probattn.experiments.config.settings import Settings


EPOCHS = """\
Epochs A + B: A of a warm start with kernel attention (--set warm_start.epochs=N, or warm_start=none), then B.
`probattn presets NAME` lists the settings of one; the first six are for your own data, see docs/your-own-data.md."""
YAML = "Print the settings as a file for `probattn train --config`."


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Preset whose settings are listed.")] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help=YAML)] = False,
) -> None:
    """List the presets, or the settings of one with their meanings and choices."""
    from probattn.experiments.config.presets import PRESETS, preset
    from probattn.experiments.config.yaml_files import to_yaml

    if name is None:
        if yaml:
            fail("name a preset, whose settings to print; `probattn presets` lists all")
        _list_presets(PRESETS)
    elif yaml:
        typer.echo(to_yaml(name, preset(name)), nl=False)
    else:
        _list_settings(preset(name))


def _list_presets(known: "dict[str, Settings]") -> None:
    table = Table(Column("preset", no_wrap=True), "depth × width, heads", "layer", "in blocks", "epochs")
    for name, settings in known.items():
        network, layer, start = settings.network, settings.layer, settings.warm_start
        shape = "pretrained" if network.kind == "encoder" else f"{network.depth} × {network.dim}, {network.heads}"
        epochs = f"{start.epochs} + {settings.train.epochs}" if start else f"{settings.train.epochs}"
        table.add_row(name, shape, layer.name, f"last {layer.last}" if layer.last else "all", epochs)
    show_table(table)
    say(EPOCHS)


def _list_settings(settings: "Settings") -> None:
    from probattn.experiments.config.schema import first_sentence
    from probattn.experiments.config.settings import describe

    table, described = Table(Column("setting", no_wrap=True), "value", "choices", "meaning"), describe(settings)
    for key, value in settings.flat().items():
        meaning, allowed = described.get(key, ("", []))
        text = str(value).lower() if isinstance(value, bool | None) else str(value)
        table.add_row(key, text, ", ".join(allowed), first_sentence(meaning))
    show_table(table)
    say("Change any with --set SETTING=VALUE, or in the file that --yaml prints.")
