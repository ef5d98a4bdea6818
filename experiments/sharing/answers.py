"""Answers to single inputs: a class or a number, with its uncertainty, as records, JSON Lines and CSV."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from probattn.inference import Prediction

LEVEL = 0.9
"""Probability of the predictive interval of a number."""


@dataclass(frozen=True)
class Answer:
    """Answer to one input.

    Args:
        input: name of the input.
        predicted: the most probable class.
        confidence: its probability.
        entropy: total uncertainty in nats: entropy of the probabilities.
        mutual_information: the part of it that posterior samples differ in, in nats.
        set: the classes of the conformal prediction set; None without a threshold.
        probs: probability of each class.
    """

    input: str
    predicted: str
    confidence: float
    entropy: float
    mutual_information: float
    set: tuple[str, ...] | None
    probs: dict[str, float]


@dataclass(frozen=True)
class NumberAnswer:
    """Answer of a regression to one input, in the units of the labels.

    Args:
        input: name of the input.
        predicted: the predictive mean.
        low, high: the central predictive interval of probability :data:`LEVEL`.
        std: the predictive standard deviation.
    """

    input: str
    predicted: float
    low: float
    high: float
    std: float


def number_answers(prediction: Prediction, names: Sequence[str]) -> list[NumberAnswer]:
    """Return the answer of a regression to each input, of n predictions of one number."""
    low, high = prediction.quantiles([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).double().cpu().flatten(1).unbind(0)
    values = (prediction.mean, low, high, prediction.variance.sqrt())
    rows = torch.stack([each.double().cpu().flatten() for each in values]).T.tolist()
    return [NumberAnswer(name, *row) for name, row in zip(names, rows, strict=True)]


def answers(
    prediction: Prediction, names: Sequence[str], classes: Sequence[str], *, quantile: float | None
) -> list[Answer]:
    """Return the answer to each input.

    Args:
        prediction: of n inputs.
        names: names of the inputs.
        classes: names of the classes.
        quantile: threshold of the prediction sets, which hold the classes with 1 − p at most this; None: no sets.
    """
    probs = prediction.probs.double().cpu()
    rows = zip(names, probs, prediction.entropy.tolist(), prediction.mutual_information.tolist(), strict=True)
    found = []
    for name, row, entropy, information in rows:
        best, order = int(row.argmax()), row.argsort(descending=True).tolist()
        members = None
        if quantile is not None:
            members = tuple(classes[at] for at in order if 1 - row[at] <= quantile)
        by_class = dict(zip(classes, row.tolist(), strict=True))
        found.append(Answer(name, classes[best], float(row[best]), entropy, information, members, by_class))
    return found


def to_jsonl(found: Sequence[Answer] | Sequence[NumberAnswer], failures: Mapping[str, str]) -> str:
    """Return a JSON object a line: of each answer, and of each input that could not be read its ``error``."""
    lines = [asdict(each) for each in found] + [{"input": name, "error": text} for name, text in failures.items()]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def to_csv(found: Sequence[Answer] | Sequence[NumberAnswer], failures: Mapping[str, str]) -> str:
    """Return a table with the column ``error`` for inputs that could not be read; classes of a set are a JSON list."""
    out = io.StringIO()
    of_numbers = bool(found) and isinstance(found[0], NumberAnswer)
    values = ("low", "high", "std") if of_numbers else ("confidence", "entropy", "mutual_information", "set")
    columns = ("input", "predicted", *values, "error")
    writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for each in found:
        row = asdict(each)
        if isinstance(each, Answer):
            row["set"] = "" if each.set is None else json.dumps(each.set, ensure_ascii=False)
        writer.writerow(row)
    writer.writerows({"input": name, "error": text} for name, text in failures.items())
    return out.getvalue()
