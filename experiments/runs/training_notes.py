"""Notes on the training of a run from its log: it was stopped, is too short, or has
taught the network nothing."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.config.settings import Settings
from probattn.experiments.data.dataset import Dataset
from probattn.inference.training.validation import monitored

LATE = 0.05
"""Share of the whole improvement above which that of the second half of the epochs is called
still improving. With the cosine schedule a network that learns steadily makes 0.18 of it then, and
one that has come within e⁻⁵ of its optimum less than 0.02."""


def training_notes(
    folder: Path,
    settings: Settings,
    dataset: Dataset,
    epochs: Sequence[Mapping],
    *,
    best_epoch: int,
) -> tuple[str, ...]:
    """Return what there is to say of a run's training: that it was stopped before its end; that its
    best epoch is the last, and much of the improvement late (:data:`LATE`); that no epoch has a
    lower NLL than the shares of the classes alone.

    Args:
        folder: of the run.
        settings: of the run.
        dataset: its data.
        epochs: records of its epochs, as ``log.jsonl`` has them.
        best_epoch: epoch of its weights.
    """
    if not epochs:
        return ()
    done = epochs[-1]["epoch"]
    options = settings.train
    if done < options.epochs and done - best_epoch < (options.patience or math.inf):
        command = f"probattn train --out {shlex.quote(str(folder))} --resume"
        return (
            f"Training was stopped after epoch {done} of {options.epochs}. To go on: {command}",
        )
    notes = []
    metrics = pd.DataFrame(list(epochs))
    name = monitored(options.monitor, metrics)
    half = (len(epochs) + 1) // 2
    first, middle, last = metrics[f"valid/{name}"].iloc[[0, half - 1, -1]]
    # Of a metric that falls or rises, late / whole is the same.
    if best_epoch == done and abs(last - middle) > LATE * abs(last - first):
        notes.append(
            f"The validation {name} was still improving ({middle:.4g} after epoch {half}, "
            f"{last:.4g} after epoch {done}): train longer, with --epochs {2 * settings.epochs}."
        )
    if dataset.classes and not options.class_weights:
        counts = dataset.train.labels.bincount(minlength=len(dataset.classes))
        log_shares = (counts / counts.sum()).log()
        # NLL of answering with the shares of the classes in the training data
        constant = -log_shares[dataset.valid.labels].mean().item()
        lowest = metrics["valid/nll"].min()
        if lowest >= constant:
            notes.append(
                "In no epoch is the validation NLL lower than with the shares of the classes alone "
                f"({constant:.4g}; its lowest is {lowest:.4g}): train longer, or with smaller "
                "batches (data.batch_size)."
            )
    return tuple(notes)
