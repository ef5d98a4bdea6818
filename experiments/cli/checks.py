"""``probattn check-posterior`` and ``probattn check-gp``: the guides and the closed forms against references."""

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from probattn.experiments.cli.terminal import SEED, check_folder, fail, say, show_table


def check_posterior(
    out: Annotated[
        Path | None,
        typer.Option(callback=check_folder, help="Folder of the text and the figures; default runs/posterior."),
    ] = None,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of data, guides and samplers.")] = 0,
) -> None:
    """Check the guides of a small model on digits by NUTS, importance ratios and simulation-based calibration.

    Takes minutes.
    """
    from probattn.experiments.studies.posterior_check import posterior_check

    found = posterior_check(seed=seed, say=say)
    say(str(found))
    folder = out or Path("runs/posterior")
    found.save(folder)
    say(f"text and figures: {folder}")


def check_gp(seed: Annotated[int, typer.Option(**SEED, help="Seed of inputs and parameters.")] = 0) -> None:
    """Compare the layers' closed forms with GPyTorch's Gaussian processes in float64. Takes seconds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit", FutureWarning)  # from linear_operator, which GPyTorch imports
        from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check

    found = gp_check(seed=seed)
    table = Table(
        "component", "quantity", Column("largest difference", justify="right"), Column("relative", justify="right")
    )
    for each in found:
        table.add_row(each.component, each.quantity, f"{each.absolute:.1e}", f"{each.relative:.1e}")
    show_table(table)
    wrong = [f"{each.component}, {each.quantity}" for each in found if not each.passes]
    if wrong:
        fail(f"these differ from GPyTorch by more than a relative {TOLERANCE:.0e}: {'; '.join(wrong)}")
    say(f"all agree with GPyTorch to a relative {TOLERANCE:.0e}")
