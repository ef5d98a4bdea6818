"""The ``probattn`` command."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

console = Console()
app = typer.Typer(
    help="Uncertainty-aware attention: train, evaluate and compare transformers whose attention is a Pyro program.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(help="Measure cost, as ratios within one run.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Data = Annotated[Path | None, typer.Option(help="Folder of the data sets; default $PROBATTN_DATA, else ./data.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="One of `probattn presets`.")],
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/PRESET.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a preset; stop it at any moment and go on with --resume."""
    with _stoppable("the same command with --resume goes on after the last whole epoch"):
        from probattn.experiments import presets, runs

        settings = presets.preset(preset).with_changes(set_ or ())
        folder = out or Path("runs") / preset
        done = runs.epochs_done(folder) if resume else 0
        history = runs.train(settings, folder, name=preset, root=data, resume=resume, say=_say)
    if len(history.epochs) == done:
        _say(f"{folder} was finished already, after {done} epochs; nothing to do")
    monitor = settings.train.monitor or "accuracy"
    if history.best_value is None:
        _fail(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    _say(
        f"best epoch {history.best_epoch} of {len(history.epochs)}, "
        f"valid {monitor} {history.best_value:.4f}; next: probattn evaluate {folder}"
    )


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    data: Data = None,
    num_draws: Annotated[int | None, typer.Option(min=1, help="Posterior draws; default train.num_draws.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the posterior draws.")] = 0,
) -> None:
    """Evaluate a run on its test data: table, metrics.json, figures/ and report.html."""
    from probattn.experiments import report, runs

    result = runs.evaluate(run, root=data, num_draws=num_draws, seed=seed)
    _show_table(report.table([result]))
    report.save_figures(run / "figures", result)
    report.write(run / "report.html", [result], title=f"probattn: {result.name}")
    _say(f"report: {run / 'report.html'}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(min=3, help="Epochs of each run, warm starts included.")] = 40,
    layers: Annotated[
        str, typer.Option(help="Which digits presets: names with commas between, or all (each layer once).")
    ] = "softmax,kep-svgp",
) -> None:
    """Train layers on digits, KEP-SVGP and its softmax twin unless told, and compare them in a table and a report."""
    with _stoppable("the same command goes on after the last whole epoch"):
        from probattn.experiments import presets, report, runs

        results = []
        for name in presets.digits(layers):
            folder = out / name.partition("/")[2]
            settings = presets.preset(name).lasting(epochs)
            _say(name, style="bold")
            runs.train(settings, folder, name=name, resume=True, say=_say)
            results.append(runs.evaluate(folder))
        _show_table(report.table(results))
        report.write(out / "report.html", results, title="probattn demo: handwritten digits")
    _say(f"report: {out / 'report.html'}")


@app.command()
def presets() -> None:
    """List the presets."""
    from probattn.experiments.presets import PRESETS

    table = Table(Column("preset", no_wrap=True), "data", "network", "layer", Column("epochs", justify="right"))
    for name, settings in PRESETS.items():
        network, layer, start = settings.network, settings.layer, settings.warm_start
        where = {0: "", None: ", every block"}.get(layer.last, f", last {layer.last}")
        shape = f"{network.depth} × {network.dim}, {network.heads} heads"
        epochs = f"{start.epochs} + {settings.train.epochs}" if start else str(settings.train.epochs)
        table.add_row(name, settings.data.name, shape, f"{layer.name}{where}", epochs)
    _show_table(table)
    _say("A sum of epochs: the first are a warm start with kernel attention (--set warm_start.epochs=N, or none).")


@bench_app.command("layers")
def bench_layers(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of all cases.")] = 11, json: Json = None
) -> None:
    """Forward and backward of the layers, relative to scaled-dot-product attention in the same run."""
    from probattn.experiments import bench

    _check_writable(json)
    _show([bench.layers(repeats=repeats), bench.gaussian_process_layers(repeats=repeats)], json)


@bench_app.command("predict")
def bench_predict(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of all cases.")] = 7, json: Json = None
) -> None:
    """Ten-draw prediction and the training step of the 7-layer ViT, relative to the softmax ViT."""
    from probattn.experiments import bench

    _check_writable(json)
    _show([bench.prediction(repeats=repeats)], json)


def _show(results: list[dict], json: Path | None) -> None:
    from probattn.experiments.folder import write_json

    for result in results:
        table = Table("case", "ms (median)", "relative to", "ratio", title=result["title"])
        for row in result["rows"]:
            table.add_row(row["case"], f"{row['ms']:.1f}", row["baseline"], f"{row['ratio']:.3f}")
        _show_table(table)
        for case, size in result.get("kept", {}).items():
            _say(f"{case}: autograd keeps {size:.1f} MiB between forward and backward")
    _say(", ".join(f"{key} {value}" for key, value in results[0]["environment"].items()))
    if json is not None:
        write_json(json, {"tables": results})


def _check_writable(path: Path | None) -> None:
    """Makes the folder of a file that is written after minutes of work, or fails now."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise OSError(f"cannot write {path}; choose another file with --json")


def _show_table(table: Table) -> None:
    """Prints a table with no cell cut off: folded to a terminal as far as it goes, in its natural width to a file."""
    extent = console.measure(table, options=console.options.update(max_width=1_000))
    width = max(console.width, extent.minimum) if console.is_terminal else extent.maximum
    Console(width=width).print(table)


def _say(text: str, *, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Runs the command; errors that a user can mend are one message, not a traceback."""
    try:
        app(prog_name="probattn")
    except Exception as error:
        if not isinstance(error, _mendable()):
            raise
        _fail(f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error))


def _mendable() -> tuple[type[Exception], ...]:
    from probattn.experiments.images import DatasetError
    from probattn.functional.linalg import NumericalError
    from probattn.inference import CheckpointError

    return DatasetError, CheckpointError, NumericalError, OSError, ValueError


@contextmanager
def _stoppable(advice: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; {advice}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(130) from None


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    raise SystemExit(1)
