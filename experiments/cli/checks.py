"""``probattn check-gp`` and ``check-gpu``: closed forms and a GPU against references."""

import warnings
from typing import Annotated

import typer
from rich.table import Table

from probattn.experiments.cli.terminal import SEED, fail, say, show_table


def check_gp(seed: Annotated[int, typer.Option(**SEED, help="Seed of inputs and parameters.")] = 0) -> None:
    """Compare the layers' closed forms with GPyTorch's Gaussian processes in float64. Takes seconds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from linear_operator, which GPyTorch imports
        from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check

    errors = gp_check(seed=seed)
    table = Table("component", "largest relative difference")
    for name, error in errors.items():
        table.add_row(name, f"{error:.1e}")
    show_table(table)
    wrong = [name for name, error in errors.items() if not error <= TOLERANCE]
    if wrong:
        fail(f"these differ from GPyTorch by more than a relative {TOLERANCE:.0e}: {', '.join(wrong)}")
    say(f"all agree with GPyTorch to a relative {TOLERANCE:.0e}")


def check_gpu() -> None:
    """Check a GPU: each layer against the CPU, training with and without bf16 and compilation, a prediction."""
    import torch

    from probattn.experiments.studies.gpu_check import checks

    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU here, so there is nothing to check")
    results = list(checks())
    table = Table("check", "result", "", title=torch.cuda.get_device_name())
    for name, result, passed in results:
        table.add_row(name, result, "ok" if passed else "FAILED")
    show_table(table)
    if not all(passed for *_, passed in results):
        fail("some checks failed")
