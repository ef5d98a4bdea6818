"""Stored predictions of a run: one file per method and group of test sets, ``RUN/predictions/METHOD/GROUP.pt``.

A group holds a single test set, or all severities of one corruption (``shift/CORRUPTION/SEVERITY``).
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from probattn.inference import CheckpointError, Prediction
from probattn.inference.io.checkpoint import read, write

FORMAT = "probattn-predictions-1"
FIELDS = ("probs", "expected_entropy", "energy", "mask", "labels")


def load_predictions(run: Path, method: str) -> dict[str, Prediction]:
    """Load all stored predictions of a run by a method, by test set; empty if there are none.

    Raises:
        CheckpointError: a damaged file.
    """
    paths = sorted(_folder(run, method).glob("*.pt"))
    return {name: Prediction(**fields) for path in paths for name, (_, fields) in _read(path).items()}


def groups(names: Iterable[str]) -> list[list[str]]:
    """Group names of test sets by the file that holds them."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_group(name), []).append(name)
    return list(found.values())


def load_or_predict(
    run: Path, method: str, origins: Mapping[str, Any], predict: Callable[[str], Prediction]
) -> dict[str, Prediction]:
    """Load the predictions of one group of test sets; compute and store those that are missing or outdated.

    Args:
        run: the run's folder.
        method: the method's name.
        origins: test set → everything that its prediction depends on, such as the seed and the digest of the weights;
            a stored prediction of another origin is outdated.
        predict: computes the prediction of a test set.
    """
    path = _folder(run, method) / f"{_group(next(iter(origins)))}.pt"
    try:
        stored = _read(path)
    except CheckpointError:
        stored = {}  # predicted again
    missing = [name for name, origin in origins.items() if name not in stored or stored[name][0] != origin]
    for name in missing:
        prediction = predict(name)
        stored[name] = [origins[name], {field: _on_cpu(getattr(prediction, field)) for field in FIELDS}]
    if missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, {"format": FORMAT, "sets": stored})
    return {name: Prediction(**stored[name][1]) for name in origins}


def _group(name: str) -> str:
    return "-".join(name.split("/")[:2])


def _folder(run: Path, method: str) -> Path:
    return run / "predictions" / method


def _read(path: Path) -> dict[str, list]:
    return read(path, expected=FORMAT)["sets"] if path.exists() else {}


def _on_cpu(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.cpu()
