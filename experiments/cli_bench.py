"""``probattn bench``: measure cost."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from probattn.experiments.terminal import check_writable, say, show_table

app = typer.Typer(help="Measure cost, as ratios within one run.", no_args_is_help=True)
Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


@app.command("layers")
def layers(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of all cases.")] = 11, json: Json = None
) -> None:
    """Forward and backward of the layers, relative to scaled-dot-product attention in the same run."""
    from probattn.experiments import bench

    check_writable(json)
    _show([bench.layers(repeats=repeats), bench.gaussian_process_layers(repeats=repeats)], json)


@app.command("predict")
def prediction(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of all cases.")] = 7, json: Json = None
) -> None:
    """Ten-draw prediction and the training step of the 7-layer ViT, relative to the softmax ViT."""
    from probattn.experiments import bench

    check_writable(json)
    _show([bench.prediction(repeats=repeats)], json)


def _show(results: list[dict], json: Path | None) -> None:
    from probattn.experiments.folder import write_json

    for result in results:
        table = Table("case", "ms (median)", "relative to", "ratio", title=result["title"])
        for row in result["rows"]:
            table.add_row(row["case"], f"{row['ms']:.1f}", row["baseline"], f"{row['ratio']:.3f}")
        show_table(table)
        for case, size in result.get("kept", {}).items():
            say(f"{case}: autograd keeps {size:.1f} MiB between forward and backward")
    say(", ".join(f"{key} {value}" for key, value in results[0]["environment"].items()))
    if json is not None:
        write_json(json, {"tables": results})
