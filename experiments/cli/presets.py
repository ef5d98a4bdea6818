"""``probattn presets``: list the presets."""

from rich.table import Column, Table

from probattn.experiments.cli.terminal import say, show_table


def presets() -> None:
    """List the presets."""
    from probattn.experiments.config.networks import EncoderSettings
    from probattn.experiments.config.presets import PRESETS

    table = Table(Column("preset", no_wrap=True), "data", "network", "layer", Column("epochs", justify="right"))
    for name, settings in PRESETS.items():
        network, layer, start = settings.network, settings.layer, settings.warm_start
        where = {0: "", None: ", every block"}.get(layer.last, f", last {layer.last}")
        is_encoder = isinstance(network, EncoderSettings)
        shape = "pretrained encoder" if is_encoder else f"{network.depth} × {network.dim}, {network.heads} heads"
        epochs = f"{start.epochs} + {settings.train.epochs}" if start else str(settings.train.epochs)
        table.add_row(name, settings.data.name, shape, f"{layer.name}{where}", epochs)
    show_table(table)
    say(
        "Epochs A + B: A of a warm start with kernel attention (--set warm_start.epochs=N, or warm_start=none), then B."
    )
