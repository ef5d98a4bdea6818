"""Answers of a run by class: accuracy, coverage of prediction sets, and what classes are taken for."""

import numpy as np
import pandas as pd

from probattn.experiments.evaluation.run_result import RunResult


def confusion(result: RunResult) -> pd.DataFrame:
    """Return the number of test examples of each true class (row) by answer (column)."""
    count = len(result.classes)
    pairs = result.labels * count + result.probs.argmax(-1)
    matrix = pairs.bincount(minlength=count**2).reshape(count, count)
    return pd.DataFrame(matrix.numpy(), index=result.classes, columns=result.classes)


def by_class(result: RunResult) -> pd.DataFrame:
    """Return examples, right answers, accuracy and most frequent wrong answer of each class, the worst class first.

    Columns of ``result.by_class``, such as the coverage of sets, follow. Classes without a test example are last.
    """
    counts = confusion(result).to_numpy()
    wrong = counts * (1 - np.eye(len(counts), dtype=int))
    frame = pd.DataFrame({"class": result.classes, "examples": counts.sum(1), "right": counts.diagonal()})
    frame["accuracy"] = frame["right"] / frame["examples"]
    frame["taken for"] = [f"{result.classes[row.argmax()]} ({row.max()})" if row.any() else "" for row in wrong]
    others = pd.DataFrame(result.by_class).drop(columns=["count", "accuracy"], errors="ignore")
    frame = frame.merge(others, on="class", how="left") if len(others) else frame
    return frame.sort_values("accuracy", kind="stable", na_position="last", ignore_index=True)


def confused_pairs(result: RunResult, count: int = 12) -> list[tuple[str, str, int]]:
    """Return the most frequent wrong answers: true class, answer, and the number of examples."""
    matrix = confusion(result).to_numpy()
    pairs = [(matrix[pair], *pair) for pair in zip(*matrix.nonzero(), strict=True) if pair[0] != pair[1]]
    pairs = sorted(pairs, key=lambda pair: -pair[0])[:count]
    return [(result.classes[true], result.classes[answer], int(examples)) for examples, true, answer in pairs]
