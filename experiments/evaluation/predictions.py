"""Stored predictions of a run, one file a method: ``RUN/predictions/METHOD.pt``."""

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
Stored = dict[str, dict[str, Any]]
"""Test set → its digest, and fields of the prediction."""


def load(folder: Path, method: str, *, key: Mapping[str, Any]) -> Stored:
    """Return what is stored of a method's predictions with this key; nothing without a file, or if it is damaged.

    Args:
        folder: the run's folder.
        method: name of the method.
        key: what all its predictions depend on: the run's files, and number and seed of the samples.
    """
    try:
        content = read_archive(folder / "predictions" / f"{method}.pt")
        return content["sets"] if content["key"] == dict(key) else {}
    except Exception:  # of many types; what is not there is predicted
        return {}


def save(folder: Path, method: str, stored: Stored, *, key: Mapping[str, Any]) -> None:
    """Write a method's predictions."""
    (folder / "predictions").mkdir(exist_ok=True)
    known = {name: fields for name, fields in stored.items() if "components" not in fields}
    write_archive(folder / "predictions" / f"{method}.pt", {"key": dict(key), "sets": known}, tag="part")


def to_fields(prediction: Prediction, digest: str) -> dict[str, Any]:
    """Return the fields of a prediction that are stored, and the components of an unknown law."""
    tensors = {name: getattr(prediction, name) for name in PER_EXAMPLE}
    fields = {name: value if value is None else value.cpu() for name, value in tensors.items()} | {"digest": digest}
    parts = prediction.components
    law = type(innermost(parts[0])).__name__ if parts else ""
    if law and law not in LAWS:
        return fields | {"law": law, "components": parts}
    parameters = {name: torch.cat([values(part, name) for part in parts], 1).cpu() for name in LAWS.get(law, ())}
    return fields | {"law": law, "parameters": parameters}


def to_prediction(fields: Mapping[str, Any]) -> Prediction:
    """Return the prediction of stored fields."""
    components = fields.get("components", ())
    if fields["law"] in LAWS:
        components = (getattr(dist, fields["law"])(**fields["parameters"]).to_event(1),)
    return Prediction(components=components, **{name: fields[name] for name in PER_EXAMPLE})
