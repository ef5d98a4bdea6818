"""Conclusion on a run in sentences, and the statistics by class behind it."""

import math
from importlib.util import find_spec

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix
from torch import Tensor

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.example_intervals import metric_intervals, share_interval
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting.html import paragraphs
from probattn.inference import metrics
from probattn.inference.metrics import regression
from probattn.inference.metrics.calibration_errors import ece_floor, smece
from probattn.inference.metrics.refinement import refined_log_probs

MANY = 100
"""Examples from which the refinement of the NLL is told."""


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
    matrix = confusion(result)
    counts = matrix.to_numpy()
    errors = counts - np.diag(counts.diagonal())
    names = matrix.columns.to_numpy()
    frame = pd.DataFrame(
        {
            "class": names,
            "examples": counts.sum(1),
            "right": counts.diagonal(),
            "taken_for": names[errors.argmax(1)],
            "mistakes": errors.max(1),
        }
    )
    frame["accuracy"] = frame["right"] / frame["examples"]
    coverage = ["coverage", "coverage_by_class"]
    scores = result.of_kind("class").reindex(index=names, columns=coverage)
    frame[coverage] = scores.to_numpy()
    return frame.sort_values("accuracy", kind="stable", na_position="last", ignore_index=True)


def conclusion(result: RunResult) -> list[str]:
    """Return what a practitioner should know about a run, the most important first; for terminal
    and report."""
    numbers = _of_classes(result) if result.classes else _of_numbers(result)
    return paragraphs(
        "conclusion.txt",
        result=result,
        diverged=not all(map(_is_finite, result.steps)),
        repeated=result.summary.repeated if result.summary else 0,
        **numbers,
    )


def _is_finite(step: dict) -> bool:
    return all(math.isfinite(term) for term in step.values() if isinstance(term, float))


def _of_classes(result: RunResult) -> dict[str, object]:
    """Return the numbers of the sentences on a run that predicts classes."""
    test = result.test
    probs, labels = test.require("probs").double(), test.require("labels")
    right = int((test.predicted == labels).sum())
    _, risk = metrics.risk_coverage(probs, labels)
    accepted = [math.ceil(share * len(test)) for share in (0.5, 0.8, 1)]
    # NLL after the best temperature and class biases
    refinement = None
    if len(labels) >= MANY:
        refinement = -float(refined_log_probs(probs, labels).mean())
    classes = by_class(result)
    wrong = classes[classes["mistakes"] > 0]
    covered = classes.dropna(subset=["coverage"]).nsmallest(1, "coverage").to_dict("records")
    return {
        "accuracy": right / len(test),
        "right": right,
        "interval": share_interval(right, len(test)),
        "largest": classes.loc[classes["examples"].idxmax()],
        "worst": wrong[:3].to_dict("records"),
        "mistake": classes.loc[classes["mistakes"].idxmax()],
        "missing": list(classes["class"][classes["examples"] == 0]),
        "uncovered": [row for row in covered if _is_uncovered(row, result)],
        "confidence": float(probs.amax(-1).mean()),
        "floor": ece_floor(probs, labels),
        "smooth": smece(probs, labels) if find_spec("relplot") else None,
        "refinement": refinement,
        "risks": [float(risk[place - 1]) for place in accepted],
    }


def _is_uncovered(row: dict[str, float], result: RunResult) -> bool:
    """Return True if sets hold a class clearly more rarely than all classes on average."""
    covered = round(row["coverage"] * row["examples"])
    _, high = share_interval(covered, int(row["examples"]))
    return high < result.decisions["plain sets"]["coverage"]


def _of_numbers(result: RunResult) -> dict[str, object]:
    """Return the numbers of the sentences on a run that predicts numbers."""
    test = result.test
    labels = test.require("labels")
    truth = labels.double().flatten()
    error = (test.predicted - labels).double().flatten()
    low, high = regression.interval(test, level=0.9)
    covered = int(((low <= labels) & (labels <= high)).sum())
    by_certainty = test.require("variance").flatten().argsort()
    certain = by_certainty[: math.ceil(0.8 * len(truth))]
    thirds = truth.argsort().tensor_split(3)
    return {
        "rmse": _size(error),
        "constant": _size(truth - truth.mean()),
        "certain": _size(error[certain]),
        "interval": metric_intervals(test, result.metrics).get("rmse", (math.nan, math.nan)),
        "thirds": [_size(error[third]) for third in thirds if len(third)],
        "covered": covered / len(truth),
        "bounds": share_interval(covered, len(truth)),
    }


def _size(error: Tensor) -> float:
    return float(error.square().mean().sqrt())
