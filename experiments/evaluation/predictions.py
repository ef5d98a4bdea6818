"""Stored predictions of a run, one file a method and test set: ``RUN/predictions/METHOD/SET.pt``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import torch

from probattn.inference import Prediction
from probattn.inference.io.files import read_archive, write_archive
from probattn.inference.prediction.mixture import innermost, values
from probattn.inference.prediction.result import PER_EXAMPLE

LAWS = {"Normal": ("loc", "scale"), "StudentT": ("df", "loc", "scale")}
"""Likelihoods of numbers whose parameters are stored; predictions with others are made anew each time."""


def path(run: Path, method: str, name: str) -> Path:
    """Return the file of a prediction by a method on a test set."""
    return run / "predictions" / method / f"{name}.pt"


def load(file: Path, *, stamp: Mapping[str, Any]) -> Prediction | None:
    """Return a stored prediction with this stamp; None without a file, or if it is damaged."""
    try:
        content = read_archive(file)
        laws = [getattr(dist, law)(**parameters).to_event(1) for law, parameters in content["laws"].items()]
        return Prediction(components=tuple(laws), **content["fields"]) if content["stamp"] == dict(stamp) else None
    except Exception:  # of many types; what is not there is predicted
        return None


def save(file: Path, prediction: Prediction, *, stamp: Mapping[str, Any]) -> None:
    """Write a prediction, unless its likelihood is none of :data:`LAWS`.

    Args:
        file: its file.
        prediction: the prediction.
        stamp: what it depends on: :func:`~evaluated_run.run_stamp`, and the digest of the examples.
    """
    parts, laws = prediction.components, {}
    if parts:
        law = type(innermost(parts[0])).__name__
        if law not in LAWS:
            return
        laws[law] = {name: torch.cat([values(part, name) for part in parts], 1).cpu() for name in LAWS[law]}
    tensors = {name: getattr(prediction, name) for name in PER_EXAMPLE}
    fields = {name: value if value is None else value.cpu() for name, value in tensors.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_archive(file, {"stamp": dict(stamp), "laws": laws, "fields": fields}, tag="part")
