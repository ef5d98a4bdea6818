"""``probattn bench``, ``check-gp`` and ``check-gpu``: cost, closed forms and a GPU against
references."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, SettingChanges, fail, say

Out = Annotated[
    Path | None,
    typer.Option(dir_okay=False, metavar="FILE.csv", help="Also write the tables to a file."),
]
# Columns with which the tables of bench begin.
MARK = "section,case"
Suite = Literal["layers", "scaling", "vit"]


def bench(
    suite: Annotated[Suite, typer.Argument(help="What is measured.")],
    rounds: Annotated[int, typer.Option(**COUNT, help="Number of turns of each case.")] = 7,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device.")] = "cpu",
    set_: SettingChanges = None,
    out: Out = None,
) -> None:
    """Benchmark time and memory, as ratios to softmax attention in the same run; the cases take
    turns.

    layers: forward and backward of a layer. scaling: the same over the number of tokens. vit:
    training steps of the ViT of CIFAR-10, and its prediction with ten posterior samples; --set
    changes its settings.
    """
    import pandas as pd
    import torch

    from probattn.experiments.bench.suites import SUITES
    from probattn.experiments.displayable import csv_text
    from probattn.experiments.runs.folder import environment
    from probattn.inference.io.outputs import check_outputs, write_outputs

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("PyTorch finds no GPU here; use --device cpu")
    if out is not None:
        check_outputs([out], mark=MARK)
    torch.manual_seed(0)
    sections = []
    for rows in SUITES[suite](rounds=rounds, device=device, changes=set_ or ()):
        sections.append(rows)
        shown = rows.drop(columns=["section", "low", "high", "gflop"])
        say(f"{rows.section[0]}\n{shown.to_string(index=False, float_format='{:,.3f}'.format)}\n")
        if out is not None:
            write_outputs({out: csv_text(pd.concat(sections))}, mark=MARK)
    say(", ".join(f"{key} {value}" for key, value in environment(device).items()))


def check_gp(
    seed: Annotated[int, typer.Option(**SEED, help="Seed of inputs and parameters.")] = 0,
) -> None:
    """Compare the layers' closed forms with GPyTorch's Gaussian processes in float64. Takes
    seconds."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".torch.jit", FutureWarning
        )  # from linear_operator, which GPyTorch imports
        from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check

    say(f"relative differences from GPyTorch; the tolerance is {TOLERANCE:.0e}")
    _report(
        (name, f"{error:.1e}", error <= TOLERANCE) for name, error in gp_check(seed=seed).items()
    )


def check_gpu() -> None:
    """Check a GPU: each layer against the CPU, training with and without bf16 and compilation, a
    prediction."""
    import torch

    from probattn.experiments.studies.gpu_check import checks

    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU here, so there is nothing to check")
    say(f"on {torch.cuda.get_device_name()}")
    _report(checks())


def _report(results: Iterable[tuple[str, str, bool]]) -> None:
    """Print each check with its result and whether it is as expected, as soon as it is done; fail
    unless all are."""
    failed = []
    for name, value, passed in results:
        say(f"{'ok' if passed else 'FAILED':8}{name}: {value}")
        failed += [] if passed else [name]
    if failed:
        fail(f"these checks failed: {', '.join(failed)}")
    say("all agree")
