"""Answers of a run by class: confusion, accuracy and coverage, the most frequent mistake."""

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
    """Return the statistics of each class, the worst class first, and classes without a test example last.

    Columns are ``class, examples, right, accuracy``, the most frequent wrong answer ``taken_for`` and its count
    ``mistakes``, and the coverage of both kinds of sets.
    """
    counts = confusion(result).to_numpy()
    wrong = counts * (1 - np.eye(len(counts), dtype=int))
    names = np.array(list(map(displayable, result.classes)), dtype=object)
    frame = pd.DataFrame({"class": names, "examples": counts.sum(1), "right": counts.diagonal()})
    frame["accuracy"] = frame["right"] / frame["examples"]
    frame["taken_for"], frame["mistakes"] = names[wrong.argmax(1)], wrong.max(1)
    for key in ("coverage", "coverage_by_class"):
        frame[key] = [result.by_class.get(name, {}).get(key, math.nan) for name in result.classes]
    return frame.sort_values("accuracy", kind="stable", na_position="last", ignore_index=True)
