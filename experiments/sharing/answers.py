"""Answers to single inputs: a class or a number, with its uncertainty, as records, JSON Lines and CSV."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from probattn.experiments.evaluation.calibration import Calibration
from probattn.inference import Prediction

LEVEL = 0.9
"""Probability of the intervals of numbers without a calibration."""
DESCENDING = {"entropy": True, "mutual_information": True, "confidence": False, "std": True}
"""Measures of uncertainty by which answers are sorted, and whether large values come first."""
Answer = dict[str, Any]
"""Values of one answer by name, see :func:`class_answers` and :func:`number_answers`."""


def class_answers(
    prediction: Prediction,
    names: Sequence[str],
    classes: Sequence[str],
    *,
    calibration: Calibration | None = None,
    by_class: bool = False,
) -> list[Answer]:
    """Return the answers of a classifier: input, predicted, confidence, entropy, mutual_information, probs.

    The mutual information is that of the posterior samples, before the probabilities are scaled. With a calibration an
    answer also has ``set``, the classes of the conformal set, and ``accepted``.

    Args:
        prediction: of n inputs, not calibrated.
        names: names of the inputs.
        classes: names of the classes.
        calibration: of the run; None leaves the probabilities as they are.
        by_class: sets that hold each class with the calibration's level.
    """
    scaled = prediction if calibration is None else calibration.apply(prediction)
    probs, columns = scaled.probs.double().cpu(), {}
    if calibration is not None:
        members, order = calibration.sets(probs, by_class=by_class), probs.argsort(1, descending=True)
        columns["set"] = [
            [classes[index] for index in row.tolist() if chosen[index]]
            for row, chosen in zip(order, members, strict=True)
        ]
        columns["accepted"] = calibration.accepts(probs).tolist()
    values = {
        "input": names,
        "predicted": [classes[index] for index in probs.argmax(1).tolist()],
        "confidence": probs.amax(1).tolist(),
        "entropy": scaled.entropy.tolist(),
        "mutual_information": prediction.mutual_information.tolist(),
        **columns,
        "probs": [dict(zip(classes, row, strict=True)) for row in probs.tolist()],
    }
    return _records(values)


def number_answers(
    prediction: Prediction, names: Sequence[str], *, calibration: Calibration | None = None
) -> list[Answer]:
    """Return the answers of a regression in the units of the labels: input, predicted, low, high, std.

    ``low`` and ``high`` are the ends of the conformal interval, or without a calibration of the central predictive one
    of probability :data:`LEVEL`.

    Args:
        prediction, names, calibration: as for :func:`class_answers`.
    """
    ends = (
        prediction.quantiles([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        if calibration is None
        else torch.stack(calibration.intervals(prediction))
    )
    low, high = ends.flatten(1).tolist()
    mean, std = prediction.mean.flatten().tolist(), prediction.variance.sqrt().flatten().tolist()
    return _records({"input": names, "predicted": mean, "low": low, "high": high, "std": std})


def sort_answers(answers: Sequence[Answer], measure: str) -> list[Answer]:
    """Return answers from the most to the least uncertain by a measure of :data:`DESCENDING`.

    Raises:
        ValueError: the answers do not have the measure.
    """
    if answers and measure not in answers[0]:
        known = " or ".join(name for name in DESCENDING if name in answers[0])
        raise ValueError(f"these answers have no {measure}: sort them by {known}")
    return sorted(answers, key=lambda answer: answer[measure], reverse=DESCENDING[measure])


def to_jsonl(answers: Sequence[Answer], failures: Mapping[str, str]) -> str:
    """Return a JSON object a line: of each answer, and of each input that could not be read its ``error``."""
    lines = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in answers
    ]
    lines += [{"input": name, "error": text} for name, text in failures.items()]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def to_csv(answers: Sequence[Answer], failures: Mapping[str, str]) -> str:
    """Return a table: a column ``p(CLASS)`` for each class, and ``error`` of inputs that could not be read.

    The classes of a set are a JSON list.
    """
    rows = []
    for answer in answers:
        row = {name: value for name, value in answer.items() if name != "probs"}
        if "set" in row:
            row["set"] = json.dumps(row["set"], ensure_ascii=False)
        rows.append(row | {f"p({name})": value for name, value in answer.get("probs", {}).items()})
    columns = [*(rows[0] if rows else ("input",)), "error"]
    rows += [{"input": name, "error": text} for name, text in failures.items()]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _records(values: Mapping[str, Sequence[Any]]) -> list[Answer]:
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
