"""Conclusion on a run in sentences, and the statistics by class behind it."""

import math

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.example_intervals import metric_intervals, share_interval
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting.html import render
from probattn.inference import metrics
from probattn.inference.metrics import regression

RESAMPLES = 200
"""Labels drawn from the predictions, for the calibration error that chance alone makes."""


def confusion(result: RunResult) -> pd.DataFrame:
    """Return the number of test examples of each true class (row) by answer (column)."""
    names = list(map(displayable, result.classes))  # pandas refuses surrogates
    matrix = confusion_matrix(result.test.labels, result.test.predicted, labels=range(len(names)))
    return pd.DataFrame(matrix, index=names, columns=names)


def by_class(result: RunResult) -> pd.DataFrame:
    """Return the statistics of each class, the worst class first, and classes without a test
    example last.

    Columns are ``class, examples, right, accuracy``, the most frequent wrong answer ``taken_for``
    and its count ``mistakes``, and the coverage of both kinds of sets.
    """
    counts = confusion(result).to_numpy()
    errors = counts * (1 - np.eye(len(counts), dtype=int))
    names = np.array(list(map(displayable, result.classes)), dtype=object)
    frame = pd.DataFrame({"class": names, "examples": counts.sum(1), "right": counts.diagonal()})
    frame["accuracy"] = frame["right"] / frame["examples"]
    frame["taken_for"], frame["mistakes"] = names[errors.argmax(1)], errors.max(1)
    for key in ("coverage", "coverage_by_class"):
        frame[key] = [result.by_class.get(name, {}).get(key, math.nan) for name in result.classes]
    return frame.sort_values("accuracy", kind="stable", na_position="last", ignore_index=True)


def conclusion(result: RunResult) -> list[str]:
    """Return what a practitioner should know about a run, the most important first; for terminal
    and report."""
    numbers = _of_classes(result) if result.classes else _of_numbers(result)
    terms = [value for step in result.steps for value in step.values() if isinstance(value, float)]
    diverged = not all(map(math.isfinite, terms))
    repeated = result.summary.repeated if result.summary else 0
    text = render("conclusion.txt", result=result, diverged=diverged, repeated=repeated, **numbers)
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _of_classes(result: RunResult) -> dict[str, object]:
    probs, labels, count = (
        result.test.require("probs").double(),
        result.test.require("labels"),
        len(result.test),
    )
    right = int((probs.argmax(-1) == labels).sum())
    risk = metrics.risk_coverage(probs, labels)[1]
    calibrated = probs.multinomial(
        RESAMPLES, replacement=True, generator=torch.Generator().manual_seed(0)
    ).T
    classes = by_class(result)
    least_covered = classes.dropna(subset=["coverage"]).nsmallest(1, "coverage").to_dict("records")
    return {
        "accuracy": right / count,
        "right": right,
        "interval": share_interval(right, count),
        "largest": classes.loc[classes["examples"].idxmax()],
        "worst": classes[classes["right"] < classes["examples"]][:3].to_dict("records"),
        "mistake": classes.loc[classes["mistakes"].idxmax()],
        "missing": list(classes["class"][classes["examples"] == 0]),
        "uncovered": [row for row in least_covered if _is_uncovered(row, result)],
        "confidence": float(probs.amax(-1).mean()),
        "chance": float(np.quantile([metrics.ece(probs, sampled) for sampled in calibrated], 0.95)),
        "risks": [float(risk[math.ceil(share * count) - 1]) for share in (0.5, 0.8, 1)],
    }


def _is_uncovered(row: dict[str, float], result: RunResult) -> bool:
    """Return True if sets hold a class clearly more rarely than all classes on average."""
    interval = share_interval(round(row["coverage"] * row["examples"]), int(row["examples"]))
    return interval[1] < result.decisions["plain sets"]["coverage"]


def _of_numbers(result: RunResult) -> dict[str, object]:
    prediction, labels = result.test, result.test.require("labels")
    error, truth = (prediction.predicted - labels).double().flatten(), labels.double().flatten()
    low, high = regression.interval(prediction, 0.9)
    covered, count = int(((low <= labels) & (labels <= high)).sum()), len(truth)
    certain = prediction.require("variance").flatten().argsort()[: math.ceil(0.8 * count)]
    errors = {"rmse": error, "constant": truth - truth.mean(), "certain": error[certain]}
    return {name: _size(values) for name, values in errors.items()} | {
        "interval": metric_intervals(prediction, result.metrics).get("rmse", (math.nan, math.nan)),
        "thirds": [_size(error[third]) for third in truth.argsort().tensor_split(3) if len(third)],
        "covered": covered / count,
        "bounds": share_interval(covered, count),
    }


def _size(error: Tensor) -> float:
    return float(torch.sqrt((error**2).mean()))
