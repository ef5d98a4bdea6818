"""The number of a column of a papers' table, from the scores of a run."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from probattn.experiments.data.images.corruptions import CORRUPTIONS
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.studies.entries import Column, Part

DETECTORS = ("kl_matching", "max_softmax", "entropy", "energy")
"""Detectors that ``average`` averages (CGP paper, Table III)."""


def value_of(column: Column, part: Part, scores: Scores, log: Mapping[str, float]) -> float | None:
    """Return the unscaled value of a column, or None where a test set that it needs is missing.

    Args:
        column: the column.
        part: its block, whose corruptions, severities and OOD sets are averaged over; others are ignored.
        scores: of a method's predictions.
        log: numbers of the run's own log.
    """
    kind, _, rest = column.subject.partition("/")
    if kind == "log":
        return log.get(column.metric)
    if kind == "test":
        return scores.test.get(column.metric)
    if kind == "domain":
        return scores.domain.get(rest, {}).get(column.metric)
    found = _under_shift(rest, column, part, scores) if kind == "shift" else _detection(rest, column, part, scores)
    return fmean(found) if found and None not in found else None


def _under_shift(category: str, column: Column, part: Part, scores: Scores) -> list[float | None]:
    names = [name for name in part.corruptions if category in ("all", CORRUPTIONS[name].category)]
    cells = [scores.shift.get(name, {}).get(severity, {}) for name in names for severity in part.severities]
    return [cell.get(column.metric) for cell in cells]


def _detection(rest: str, column: Column, part: Part, scores: Scores) -> list[float | None]:
    name, _, detector = rest.partition("/")
    sets = part.ood if name == "mean" else (name,)
    detectors = DETECTORS if detector == "average" else (detector,)
    return [scores.ood.get(each, {}).get(key, {}).get(column.metric) for each in sets for key in detectors]
