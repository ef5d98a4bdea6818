"""Answers to single inputs: a class or a number, with its uncertainty, as tables and CSV."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from probattn.experiments.displayable import csv_text, displayable
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.decision_notes import (
    EMPTY_SET,
    OUTSIDE_INTERVAL,
    OUTSIDE_SET,
)
from probattn.inference import Prediction

# Mutual information in nats of samples that differ by rounding alone.
ROUNDING = 1e-5


def class_answers(
    prediction: Prediction,
    classes: Sequence[str],
    *,
    calibration: Calibration | None = None,
    sets: str = "plain",
    has_posterior: bool = False,
) -> pd.DataFrame:
    """Return the answers of a classifier: predicted, confidence, entropy, mutual_information,
    probs.

    The mutual information is that of the posterior samples, before the probabilities are scaled;
    where all samples are equal there is no such column, unless the network has a posterior.
    ``samples`` is the number of posterior samples of a refined prediction. With a calibration an
    answer also has ``set``, the classes of the conformal set, and ``accepted``.

    Args:
        prediction: of n inputs, not calibrated.
        classes: names of the classes.
        calibration: of the run; None leaves the probabilities as they are.
        sets: kind of the conformal sets: ``plain``, ``by-class``, ``aps`` or ``raps``.
        has_posterior: keep the mutual information, also where all samples are equal.
    """
    scaled = prediction if calibration is None else calibration.apply(prediction)
    probs = scaled.require("probs").double().cpu()
    predicted = [classes[index] for index in probs.argmax(1).tolist()]
    answers = pd.DataFrame({"predicted": predicted})
    answers["confidence"] = probs.amax(1).tolist()
    answers["entropy"] = scaled.entropy.tolist()
    information = prediction.require("mutual_information")
    if has_posterior or information.max() > ROUNDING:
        answers["mutual_information"] = information.tolist()
    if prediction.samples_used is not None:
        answers["samples"] = prediction.samples_used.tolist()
    if calibration is not None:
        members = calibration.sets(probs, kind=sets).tolist()
        order = probs.argsort(1, descending=True).tolist()
        answers["set"] = [
            [classes[i] for i in row if chosen[i]]
            for row, chosen in zip(order, members, strict=True)
        ]
        answers["accepted"] = calibration.accepts(probs).tolist()
    answers["probs"] = [dict(zip(classes, row, strict=True)) for row in probs.tolist()]
    return answers


def number_answers(
    prediction: Prediction, *, calibration: Calibration | None = None
) -> pd.DataFrame:
    """Return the answers of a regression in the units of the labels: predicted, low, high, std.

    ``low`` and ``high`` are the ends of the conformal interval, or without a calibration of the
    central predictive one of probability 90 %.

    Args:
        prediction, calibration: as for :func:`class_answers`.
    """
    low, high = (
        prediction.quantiles([0.05, 0.95])
        if calibration is None
        else calibration.intervals(prediction)
    )
    stddev = prediction.require("variance").sqrt()
    columns = {"predicted": prediction.predicted, "low": low, "high": high, "std": stddev}
    return pd.DataFrame({name: column.flatten().tolist() for name, column in columns.items()})


def note_shares(answers: pd.DataFrame, unseen: pd.DataFrame) -> pd.DataFrame:
    """Return what there is to say of each answer, a column for each kind, as shares.

    Args:
        answers: as :func:`class_answers` or :func:`number_answers` returns them.
        unseen: what the network does not see of their inputs, as
            :meth:`~probattn.experiments.data.dataset.Dataset.unseen` returns it.
    """
    shares = unseen.copy()
    if "set" in answers:
        sets = list(answers["set"])
        is_inside = [name in names for name, names in zip(answers["predicted"], sets, strict=True)]
        is_empty = np.array([not names for names in sets])
        shares[EMPTY_SET] = is_empty
        shares[OUTSIDE_SET] = ~np.array(is_inside) & ~is_empty
    elif "low" in answers:
        number = answers["predicted"]
        is_outside = (number < answers["low"]) | (number > answers["high"])
        shares[OUTSIDE_INTERVAL] = is_outside.to_numpy()
    return shares


def note(shares: pd.Series) -> str:
    """Return the kinds of a row of :func:`note_shares`, with shares of less than all."""
    present = shares[shares > 0].items()
    return ", ".join(kind if share == 1 else f"{kind} {share:.0%}" for kind, share in present)


def sort_answers(answers: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return answers from the most to the least uncertain by entropy, mutual_information,
    confidence or std.

    Raises:
        ValueError: the answers do not have the measure.
    """
    if measure not in answers:
        raise ValueError(
            f"these answers have no {measure}: sort them by "
            f"{'std' if 'std' in answers else 'entropy'}"
        )
    return answers.sort_values(measure, ascending=measure == "confidence", kind="stable")


def to_csv(answers: pd.DataFrame, failures: Mapping[str, str]) -> str:
    """Return a table: a column ``p(CLASS)`` for each class, and ``error`` of inputs that could not
    be read.

    The classes of a set are a JSON list.
    """
    table = answers.drop(columns="probs", errors="ignore")
    if "set" in table:
        sets = ([displayable(name) for name in names] for names in table["set"])
        table["set"] = [json.dumps(names, ensure_ascii=False) for names in sets]
    if "probs" in answers:
        table = table.join(
            pd.DataFrame(list(answers["probs"]), index=answers.index).rename(columns="p({})".format)
        )
    failed = pd.DataFrame(failures.items(), columns=["input", "error"], dtype=object)
    return csv_text(pd.concat([table, failed]))
