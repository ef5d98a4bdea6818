"""Stored predictions of a run by a method: one file a part, ``RUN/predictions/METHOD/PART.pt``, of a few sets each.

Sets are called ``valid``, ``test`` and ``domain/NAME`` (the run's own), ``shift/CORRUPTION/SEVERITY`` and ``ood/NAME``.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from probattn.inference import CheckpointError, Prediction
from probattn.inference.io.checkpoint import read, write

FORMAT = "probattn-predictions-1"
FIELDS = ("probs", "expected_entropy", "energy", "mask", "labels")


def stored(run: Path, method: str) -> dict[str, Prediction]:
    """All stored predictions of a run by a method, by set; none where there are none.

    Raises:
        CheckpointError: a damaged file.
    """
    paths = sorted(_folder(run, method).glob("*.pt"))
    return {name: Prediction(**fields) for path in paths for name, (_, fields) in _read(path).items()}


def parts(names: Iterable[str]) -> list[list[str]]:
    """The names of sets, those that one file holds together."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(_part(name), []).append(name)
    return list(grouped.values())


def load_or_predict(
    run: Path, method: str, origins: Mapping[str, Any], predict: Callable[[str], Prediction]
) -> dict[str, Prediction]:
    """Predictions of the sets of one part: those that are stored read, the others made and stored.

    Args:
        run: the run's folder.
        method: the method's name.
        origins: sets by name, each with what its prediction depends on, such as the seed and the weights' digest; one
            that was made from something else is made again.
        predict: makes the prediction of a set.
    """
    path = _folder(run, method) / f"{_part(next(iter(origins)))}.pt"
    try:
        kept = _read(path)
    except CheckpointError:
        kept = {}  # it can be made again
    missing = [name for name, origin in origins.items() if name not in kept or kept[name][0] != origin]
    for name in missing:
        prediction = predict(name)
        kept[name] = [origins[name], {field: _on_cpu(getattr(prediction, field)) for field in FIELDS}]
    if missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, {"format": FORMAT, "sets": kept})
    return {name: Prediction(**kept[name][1]) for name in origins}


def _part(name: str) -> str:
    return "-".join(name.split("/")[:2])


def _folder(run: Path, method: str) -> Path:
    return run / "predictions" / method


def _read(path: Path) -> dict[str, list]:
    return read(path, expected=FORMAT)["sets"] if path.exists() else {}


def _on_cpu(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.cpu()
