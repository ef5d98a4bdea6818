"""Intervals of 95 % from the test examples of one run, and its accuracy by class."""

import math

import pandas as pd
import torch
from scipy.stats import binomtest
from torch import Tensor

from probattn.experiments.evaluation.metric_display import displays
from probattn.experiments.evaluation.run_result import RunResult
from probattn.inference import metrics
from probattn.inference.metrics import regression

RESAMPLES = 200
Interval = tuple[float, float]


def share_interval(count: int, total: int) -> Interval:
    """Return the exact binomial interval of a share (Clopper & Pearson, 1934)."""
    return tuple(binomtest(count, total).proportion_ci(method="exact"))


def metric_intervals(result: RunResult) -> dict[str, Interval]:
    """Return the intervals of a run's metrics by resampling its test examples, from a fixed seed.

    They are quantiles of the resampled metric, moved by its bias, which is large for calibration errors. The interval
    of accuracy is exact; metrics without a finite interval are left out.
    """
    count = len(result.labels)
    order = torch.randint(count, (RESAMPLES, count), generator=torch.Generator().manual_seed(0))
    if result.probs is None:
        drawn = {key: values[order].mean(1) for key, values in _by_example(result).items()}
        drawn["rmse"] = drawn["rmse"].sqrt()
    else:
        pairs = [(result.probs[index], result.labels[index]) for index in order]
        names = [key for key in displays(result.metrics) if key in result.metrics]
        drawn = {key: torch.tensor([getattr(metrics, key)(*pair) for pair in pairs]) for key in names}
    levels = torch.tensor([0.025, 0.975], dtype=torch.float64)
    moved = {key: values.double().quantile(levels) - values.double().mean() for key, values in drawn.items()}
    intervals = {key: tuple((result.metrics[key] + ends).tolist()) for key, ends in moved.items()}
    if result.probs is not None:
        intervals["accuracy"] = share_interval(round(result.metrics["accuracy"] * count), count)
    return {key: interval for key, interval in intervals.items() if all(map(math.isfinite, interval))}


def _by_example(result: RunResult) -> dict[str, Tensor]:
    """Return what the metrics of numbers are means of, ``(n,)``; that of RMSE is squared."""
    prediction, labels = result.numbers, result.labels
    low, high = regression.interval(prediction, 0.9)
    error = (prediction.mean - labels).double()
    parts = {"rmse": error**2, "mae": (prediction.median - labels).abs(), "crps": prediction.crps(labels)}
    parts |= {"nll": -prediction.log_prob(labels), "width_90": high - low}
    return {key: values.reshape(len(labels), -1).double().mean(1) for key, values in parts.items()}


def by_class(result: RunResult) -> pd.DataFrame:
    """Return count, right answers, accuracy and most frequent wrong answer of each class, the worst class first.

    Columns of ``result.by_class``, such as the coverage of sets, follow. Classes without a test example are last.
    """
    answers, labels = result.probs.argmax(-1), result.labels
    rows = []
    for number, name in enumerate(result.classes):
        given = answers[labels == number]
        wrong = given[given != number].bincount(minlength=len(result.classes))
        mistake = f"{result.classes[int(wrong.argmax())]} ({int(wrong.max())})" if wrong.any() else ""
        right = len(given) - int(wrong.sum())
        rows.append((name, len(given), right, right / len(given) if len(given) else math.nan, mistake))
    frame = pd.DataFrame(rows, columns=["class", "examples", "right", "accuracy", "taken for"])
    others = pd.DataFrame(result.by_class).drop(columns=["count", "accuracy"], errors="ignore")
    frame = frame.merge(others, on="class", how="left") if "class" in others else frame
    return frame.sort_values("accuracy", kind="stable", na_position="last", ignore_index=True)


def confused_pairs(result: RunResult, count: int = 12) -> pd.DataFrame:
    """Return the most frequent wrong answers: true class, answer, and the number of examples."""
    names = dict(enumerate(result.classes))
    pairs = pd.DataFrame({"true": result.labels.numpy(), "answer": result.probs.argmax(-1).numpy()})
    counts = pairs[pairs["true"] != pairs["answer"]].value_counts().head(count).reset_index(name="examples")
    return counts.assign(true=counts["true"].map(names), answer=counts["answer"].map(names))
