"""Conclusion of one run in sentences: accuracy, where it is wrong, trust in its confidence, abstention, posterior."""

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting.html import render
from probattn.experiments.reporting.intervals import (
    RESAMPLES,
    by_class,
    confused_pairs,
    metric_intervals,
    share_interval,
)
from probattn.inference import metrics
from probattn.inference.metrics import regression


def conclusion(result: RunResult) -> list[str]:
    """Return what a practitioner should know about a run, the most important first; for terminal and report."""
    numbers = _of_numbers(result) if result.probs is None else _of_classes(result) if result.has_predictions else {}
    terms = [value for step in result.steps for value in step.values() if isinstance(value, float)]
    numbers |= {"result": result, "diverged": not all(map(math.isfinite, terms)), "variants": result.variants}
    numbers["sites"] = dict.fromkeys(("not converged", "collapsed"), 0)
    for site in result.convergence or ():
        numbers["sites"][site.state] = numbers["sites"].get(site.state, 0) + 1
    return [" ".join(line.split()) for line in render("conclusion.txt", **numbers).split("\n\n") if line.strip()]


def _of_classes(result: RunResult) -> dict[str, object]:
    confidence, right = metrics.confidence_and_correct(result.probs, result.labels)
    _, risk = metrics.risk_coverage(result.probs, result.labels)
    classes = by_class(result)
    largest = classes.loc[classes["examples"].idxmax()]
    accuracy, count = float(right.double().mean()), len(right)
    generator = torch.Generator().manual_seed(0)
    calibrated = result.probs.double().multinomial(RESAMPLES, replacement=True, generator=generator)
    return {
        "accuracy": accuracy,
        "right": int(right.sum()),
        "interval": share_interval(int(right.sum()), count),
        "largest": largest["class"],
        "share": largest["examples"] / count,
        "worst": classes[classes["right"] < classes["examples"]].head(3).to_dict("records"),
        "pair": confused_pairs(result, 1).to_dict("records"),
        "uncovered": _least_covered(result, classes),
        "missing": list(classes["class"][classes["examples"] == 0]),
        "confidence": float(confidence.mean()),
        "chance": float(np.quantile([metrics.ece(result.probs, labels) for labels in calibrated.T], 0.95)),
        "risks": [float(risk[math.ceil(share * count) - 1]) for share in (0.5, 0.8, 1)],
    }


def _least_covered(result: RunResult, classes: pd.DataFrame) -> list[dict[str, object]]:
    """Return the class that the plain sets hold most rarely, if that is clearly rarer than on average."""
    rows = classes.dropna(subset=["coverage"]).nsmallest(1, "coverage") if "coverage" in classes else classes[:0]
    return [
        row
        for row in rows.to_dict("records")
        if share_interval(round(row["coverage"] * row["examples"]), row["examples"])[1]
        < result.decisions["plain sets"]["coverage"]
    ]


def _of_numbers(result: RunResult) -> dict[str, object]:
    prediction, labels = result.numbers, result.labels
    error, truth = (prediction.mean - labels).double().flatten(), labels.double().flatten()
    low, high = regression.interval(prediction, 0.9)
    covered = int(((low <= labels) & (labels <= high)).sum())
    certain = prediction.variance.flatten().argsort()[: math.ceil(0.8 * len(error))]
    return {
        "rmse": _size(error),
        "interval": metric_intervals(result).get("rmse", (math.nan, math.nan)),
        "constant": _size(truth - truth.mean()),
        "thirds": [_size(error[part]) for part in truth.argsort().tensor_split(3) if len(part)],
        "covered": covered / len(truth),
        "bounds": share_interval(covered, len(truth)),
        "certain": _size(error[certain]),
    }


def _size(error: Tensor) -> float:
    return float(torch.sqrt((error**2).mean()))
