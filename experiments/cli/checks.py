"""``probattn check-gp`` and ``check-gpu``: closed forms and a GPU against references."""

import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from probattn.experiments.cli.terminal import SEED, fail, say, show_table


def check_gp(seed: Annotated[int, typer.Option(**SEED, help="Seed of inputs and parameters.")] = 0) -> None:
    """Compare the layers' closed forms with GPyTorch's Gaussian processes in float64. Takes seconds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from linear_operator, which GPyTorch imports
        from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check

    rows = [(name, f"{error:.1e}", error <= TOLERANCE) for name, error in gp_check(seed=seed).items()]
    _show("component", f"relative difference from GPyTorch, at most {TOLERANCE:.0e}", rows)


def check_gpu() -> None:
    """Check a GPU: each layer against the CPU, training with and without bf16 and compilation, a prediction."""
    import torch

    from probattn.experiments.studies.gpu_check import checks

    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU here, so there is nothing to check")
    _show("check", f"result on {torch.cuda.get_device_name()}", list(checks()))


def _show(what: str, result: str, rows: Sequence[tuple[str, str, bool]]) -> None:
    """Print names, results and whether they are as expected; fail unless all are."""
    table = Table(what, result, "")
    for name, value, passed in rows:
        table.add_row(name, value, "ok" if passed else "FAILED")
    show_table(table)
    if failed := [name for name, _, passed in rows if not passed]:
        fail(f"these checks failed: {', '.join(failed)}")
    say("all agree")
