"""Answers of a run by class: confusion, accuracy and coverage, the most frequent mistakes."""

import math

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.run_result import RunResult


def confusion(result: RunResult) -> pd.DataFrame:
    """Return the number of test examples of each true class (row) by answer (column)."""
    names = list(map(displayable, result.classes))  # pandas refuses surrogates
    matrix = confusion_matrix(result.test.labels, result.test.predicted, labels=range(len(names)))
    return pd.DataFrame(matrix, index=names, columns=names)


def by_class(result: RunResult) -> pd.DataFrame:
    """Return examples, right answers, accuracy and most frequent wrong answer of each class, the worst class first.

    The coverage of sets follows. Classes without a test example are last.
    """
    matrix = confusion(result)
    counts, names = matrix.to_numpy(), list(matrix)
    wrong = counts * (1 - np.eye(len(names), dtype=int))
    frame = pd.DataFrame({"class": names, "examples": counts.sum(1), "right": counts.diagonal()})
    frame["accuracy"] = frame["right"] / frame["examples"]
    frame["taken for"] = [f"{names[row.argmax()]} ({row.max()})" if row.any() else "" for row in wrong]
    covered = {row["class"]: row for row in result.by_class}
    for key in ("coverage", "coverage_by_class"):
        frame[key] = [float(covered.get(name, {}).get(key, math.nan)) for name in result.classes]
    return frame.sort_values("accuracy", kind="stable", na_position="last", ignore_index=True)


def confused_pairs(result: RunResult, count: int = 12) -> list[tuple[str, str, int]]:
    """Return the most frequent wrong answers: true class, answer, and the number of examples."""
    matrix, classes = confusion(result).to_numpy(), result.classes
    pairs = [(true, answer) for true, answer in np.argwhere(matrix) if true != answer]
    pairs = sorted(pairs, key=lambda pair: -matrix[tuple(pair)])[:count]
    return [(classes[true], classes[answer], int(matrix[true, answer])) for true, answer in pairs]
