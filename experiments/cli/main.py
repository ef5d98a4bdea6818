"""The ``probattn`` command."""

import importlib.metadata
import os
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from probattn.experiments.cli import (
    bench,
    check_gpu,
    checks,
    demo,
    evaluate,
    export,
    predict,
    presets,
    reproduce,
    study,
    train,
)
from probattn.experiments.cli.error_messages import fail_with_message
from probattn.experiments.cli.terminal import interruptible, make_encodable
from probattn.experiments.runs.environment import keep_memory


class Commands(TyperGroup):
    """Group whose commands end with one line when the user presses Ctrl-C, also while they import what they need."""

    def make_context(self, *args: Any, **kwargs: Any) -> typer.Context:
        """Read the command line."""
        with interruptible("the same command starts again"):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: typer.Context) -> Any:
        """Run a command."""
        with interruptible("the same command starts again"):
            return super().invoke(ctx)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"probattn {importlib.metadata.version('probattn')}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Uncertainty-aware attention: train, evaluate and compare transformers whose attention is a Pyro program."""


app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("demo")(demo.demo)
app.command("presets")(presets.presets)
app.command("compare")(study.compare)
app.command("study")(study.study)
app.command("check-posterior")(checks.check_posterior)
app.command("check-gp")(checks.check_gp)
app.command("check-gpu")(check_gpu.check_gpu)
app.add_typer(bench.app, name="bench")
app.command("export")(export.export)
app.command("reproduce")(reproduce.reproduce)


def main() -> NoReturn:
    """Run the command; errors that a user can fix are displayed as one message without a traceback."""
    keep_memory()
    make_encodable()
    program = app
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        program = record(app)  # torchrun reports the rank whose error came first
    try:
        status = program(prog_name="probattn", standalone_mode=False)
    except Exception as error:
        fail_with_message(error)
        raise
    raise SystemExit(status if isinstance(status, int) else 0)
