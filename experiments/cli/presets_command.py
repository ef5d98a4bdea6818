"""``probattn presets``: list the presets, or the settings of one."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from probattn.experiments.cli.terminal import fail, say, show_table

if TYPE_CHECKING:
    from probattn.experiments.config.settings import Settings


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Preset whose settings are listed.")] = None,
    layer: Annotated[str | None, typer.Option(metavar="NAME", help="With another layer, as `train --layer`.")] = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the settings as a file for `probattn train --config`.")
    ] = False,
) -> None:
    """List the presets, or the settings of one with their meanings and choices."""
    from probattn.experiments.config.layer_choice import with_layer
    from probattn.experiments.config.presets import PRESETS, preset
    from probattn.experiments.config.yaml_files import to_yaml

    if name is None and (yaml or layer):
        fail("name a preset, whose settings to print; `probattn presets` lists all")
    if name is None:
        _list_presets(PRESETS)
        return
    settings = preset(name) if layer is None else with_layer(preset(name), layer)
    if yaml:
        typer.echo(to_yaml(name, settings), nl=False)
    else:
        _list_settings(settings)


def _list_presets(known: "dict[str, Settings]") -> None:
    epochs = Column("epochs", justify="right", no_wrap=True)
    table = Table(
        Column("preset", no_wrap=True), "depth × width, heads", Column("layer", overflow="fold"), "in blocks", epochs
    )
    for name, settings in known.items():
        network, layer, start = settings.network, settings.layer, settings.warm_start
        where = f"last {layer.last}" if layer.last else "all"
        is_encoder = network.kind == "encoder"
        shape = "pretrained encoder" if is_encoder else f"{network.depth} × {network.dim}, {network.heads}"
        number = f"{start.epochs} + {settings.train.epochs}" if start else str(settings.train.epochs)
        table.add_row(name, shape, layer.name, where, number)
    show_table(table)
    say(
        "Epochs A + B: A of a warm start with kernel attention (--set warm_start.epochs=N, or warm_start=none), then "
        "B.\n`probattn presets NAME` lists the settings of one; the first six are for your own data, see "
        "docs/your-own-data.md."
    )


def _list_settings(settings: "Settings") -> None:
    from probattn.experiments.config.schema import first_sentence
    from probattn.experiments.config.settings import describe

    table, described = Table(Column("setting", no_wrap=True), "value", "choices", "meaning"), describe(settings)
    for key, value in settings.flat().items():
        text = {None: "none", True: "true", False: "false"}[value] if isinstance(value, bool | None) else str(value)
        meaning, allowed = described.get(key, ("", []))
        table.add_row(key, text, ", ".join(allowed), first_sentence(meaning))
    show_table(table)
    say("Change any with --set SETTING=VALUE, or in the file that --yaml prints.")
