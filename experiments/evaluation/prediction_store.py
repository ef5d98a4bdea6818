"""Stored predictions of a run: one file per method and group of test sets, ``RUN/predictions/METHOD/GROUP.pt``.

A group holds a single test set, or all severities of one corruption (``shift/CORRUPTION/SEVERITY``). Each prediction is
stored with its provenance, which is checked whenever it is read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyro.distributions as dist
from torch import Tensor

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation.provenance import Provenance, differences
from probattn.inference import CheckpointError, Prediction
from probattn.inference.io.files import read_archive, write_archive

FORMAT = "probattn-predictions-2"
FIELDS = ("probs", "expected_entropy", "energy", "mask", "labels")
"""Stored fields of predictions of classes; those of numbers have labels, and the normal distribution of each sample."""
Stored = dict[str, tuple[Provenance, dict[str, Tensor | None]]]
"""Content of a file: test set → provenance, and fields of the prediction."""


def load_predictions(run: Path, names: Iterable[str], provenance: Provenance) -> dict[str, Prediction]:
    """Load the stored predictions of a run on some test sets.

    Args:
        run: the run's folder.
        names: the test sets.
        provenance: the method, and all that the predictions must have been computed from.

    Raises:
        CheckpointError: a damaged file.
        SettingsError: a prediction that is missing, or of another provenance; says in what it differs.
    """
    found = {}
    for group in groups(names):
        path = _path(run, provenance.method, group)
        stored = _read(path)
        for name in group:
            if name not in stored:
                raise SettingsError(f"{path} has no prediction of {name}")
            then, fields = stored[name]
            changed = differences(then, provenance.on(name))
            if changed:
                raise SettingsError(f"{path}: the prediction of {name} has another {'; '.join(changed)}")
            found[name] = _prediction(fields)
    return found


def has_predictions(run: Path, method: str) -> bool:
    """Return True if the run has stored predictions by a method."""
    return (run / "predictions" / method).is_dir()


def groups(names: Iterable[str]) -> list[list[str]]:
    """Group names of test sets by the file that holds them."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_group(name), []).append(name)
    return list(found.values())


def load_or_predict(
    run: Path, group: Sequence[str], provenance: Provenance, predict: Callable[[str], Prediction]
) -> dict[str, Prediction]:
    """Load the predictions of one group of test sets; compute and store those that are missing or outdated.

    Args:
        run: the run's folder.
        group: the test sets.
        provenance: the method, and all that the predictions are computed from; a stored one of another provenance is
            outdated.
        predict: computes the prediction of a test set.
    """
    path = _path(run, provenance.method, group)
    try:
        stored = _read(path)
    except CheckpointError:
        stored = {}  # predicted again
    missing = [name for name in group if name not in stored or stored[name][0] != provenance.on(name)]
    for name in missing:
        prediction = predict(name)
        stored[name] = provenance.on(name), _fields(prediction)
    if missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        sets = {name: [asdict(origin), fields] for name, (origin, fields) in stored.items()}
        write_archive(path, {"format": FORMAT, "sets": sets}, tag="part")
    return {name: _prediction(stored[name][1]) for name in group}


def _fields(prediction: Prediction) -> dict[str, Tensor | None]:
    """Return the tensors that a prediction is stored as.

    Raises:
        ValueError: numbers whose likelihood is not normal.
    """
    if prediction.probs is not None:
        return {field: _on_cpu(getattr(prediction, field)) for field in FIELDS}
    if prediction.normal is None:
        raise ValueError("predictions of numbers are stored for normal likelihoods only")
    pairs = zip(("loc", "scale"), prediction.normal, strict=True)
    normal = {name: value.to(prediction.mean) for name, value in pairs}
    return {"labels": _on_cpu(prediction.labels)} | {name: _on_cpu(value) for name, value in normal.items()}


def _prediction(fields: Mapping[str, Tensor | None]) -> Prediction:
    """Return a prediction from the tensors that it was stored as."""
    if "loc" not in fields:
        return Prediction(**fields)
    loc, scale = fields["loc"], fields["scale"]
    mean, variance = loc.mean(0), (scale**2).mean(0) + loc.var(0, correction=0)
    components = (dist.Normal(loc, scale).to_event(1),)
    return Prediction(mean=mean, variance=variance, labels=fields["labels"], components=components)


def _group(name: str) -> str:
    return "-".join(name.split("/")[:2])


def _path(run: Path, method: str, group: Sequence[str]) -> Path:
    return run / "predictions" / method / f"{_group(group[0])}.pt"


def _read(path: Path) -> Stored:
    if not path.exists():
        return {}
    try:
        content: Any = read_archive(path)
        if content["format"] != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        sets = content["sets"]
        return {name: (Provenance.from_json(provenance), fields) for name, (provenance, fields) in sets.items()}
    except Exception as error:  # of many types
        raise CheckpointError(f"{path} is damaged, or no file of predictions ({error})") from error


def _on_cpu(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.cpu()
