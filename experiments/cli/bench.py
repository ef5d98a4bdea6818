"""``probattn bench``: benchmarks of time and memory."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from probattn.experiments.cli.terminal import COUNT, SettingChanges, check_file, say

Suite = Literal["layers", "train", "predict", "scaling"]


def bench(
    suite: Annotated[Suite, typer.Argument(help="What is measured.")],
    rounds: Annotated[int, typer.Option(**COUNT, help="Number of turns of each case.")] = 7,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device.")] = "cpu",
    set_: SettingChanges = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Also write the measurements.")] = None,
) -> None:
    """Benchmark time and memory, as ratios to softmax attention in the same run; the cases take turns.

    layers: forward and backward of a layer. train: steps by SVI and by a loop without Pyro, and epochs, of the ViT of
    CIFAR-10. predict: its prediction with ten posterior samples. scaling: a layer over the number of tokens. --set
    changes the settings of that ViT.
    """
    import pandas as pd
    import torch

    from probattn.experiments.bench.suites import SUITES
    from probattn.experiments.runs.folder import environment

    check_file(out)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("PyTorch finds no GPU here; use --device cpu")
    torch.manual_seed(0)
    sections = []
    for rows in SUITES[suite](rounds=rounds, device=device, changes=set_ or ()):
        sections.append(rows)
        shown = rows.drop(columns=["section", "low", "high", "gflop", "tokens"], errors="ignore")
        say(f"{rows.section[0]}\n{shown.to_string(index=False, float_format='{:,.3f}'.format)}\n")
        if out is not None:
            pd.concat(sections).to_csv(out, index=False)
    say(", ".join(f"{key} {value}" for key, value in environment(device).items()))
