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


def load(folder: Path, method: str, name: str, *, key: Mapping[str, Any]) -> Prediction | None:
    """Return a stored prediction with this key; None without a file, or if it is damaged.

    Args:
        folder: the run's folder.
        method: name of the method.
        name: name of the test set.
        key: what the prediction depends on: the run's files, number and seed of the samples, digest of the examples.
    """
    try:
        content = read_archive(_path(folder, method, name))
        if content["key"] != dict(key):
            return None
        law, fields = content["law"], content["fields"]
        parts = (getattr(dist, law)(**content["parameters"]).to_event(1),) if law else ()
        return Prediction(components=parts, **fields)
    except Exception:  # of many types; what is not there is predicted
        return None


def save(folder: Path, method: str, name: str, prediction: Prediction, *, key: Mapping[str, Any]) -> None:
    """Write a prediction, unless its likelihood is none of :data:`LAWS`."""
    parts = prediction.components
    law = type(innermost(parts[0])).__name__ if parts else ""
    if law and law not in LAWS:
        return
    tensors = {name: getattr(prediction, name) for name in PER_EXAMPLE}
    content = {
        "key": dict(key),
        "law": law,
        "parameters": {name: torch.cat([values(part, name) for part in parts], 1).cpu() for name in LAWS.get(law, ())},
        "fields": {name: value if value is None else value.cpu() for name, value in tensors.items()},
    }
    path = _path(folder, method, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_archive(path, content, tag="part")


def _path(folder: Path, method: str, name: str) -> Path:
    return folder / "predictions" / method / f"{name}.pt"
