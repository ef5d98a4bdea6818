"""Limits of a run's decisions, in sentences: sets with too few validation examples, promises of a
validation part that is unlike the test part, and answers outside of their own sets."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2_contingency

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.calibration import Calibration
from probattn.inference import Prediction
from probattn.inference.decisions.conformal import min_examples
from probattn.inference.prediction.predictor import class_probs

# Level of the test for equal class shares.
SIGNIFICANCE = 0.01
# χ² is accurate from this number of expected examples in a part on. Classes with fewer are tested
# as one, or not at all if they have fewer together.
MIN_EXPECTED = 5
# Number of classes that are named: those with the fewest examples.
MAX_NAMED = 10
# Kinds of answers that lie outside of their own set or interval.
EMPTY_SET = "empty set"
OUTSIDE_SET = "predicted class outside the set"
OUTSIDE_INTERVAL = "predicted number outside the interval"
# Name → kind of sets that may lack the most probable class; adaptive ones hold it.
WITHOUT_TOP = {"plain set": "plain", "set by class": "by-class"}


def decision_notes(
    calibration: Calibration, classes: Sequence[str], test: Prediction
) -> tuple[str, ...]:
    """Return all sentences on the decisions of a run; arguments as for :func:`other_shares`."""
    notes = few_examples(calibration, classes) + other_shares(calibration, classes, test)
    return tuple(notes + outside_sets(calibration, test))


def few_examples(calibration: Calibration, classes: Sequence[str]) -> list[str]:
    """Return sentences on sets or intervals that hold everything, and on abstention that accepts
    nothing, for want of validation examples.

    Args:
        calibration: of the run.
        classes: names of the classes; empty for numbers.
    """
    notes = []
    if calibration.confidence == math.inf:
        notes = [f"Accepted answers: none ({calibration.abstention})."]
    level = f"{100 * calibration.level:g} %"
    needed = min_examples(1 - calibration.level)
    if math.isinf(calibration.quantile):
        held = "Prediction sets hold every class" if classes else "Intervals are infinite"
        takes = f"a level of {level} takes at least {needed} validation examples"
        advice = "Add some (data.valid_share), or evaluate with a lower --level"
        return [*notes, f"{held}: {takes}. {advice}."]
    counts = calibration.class_examples
    rare = [number for number in np.argsort(counts, kind="stable") if counts[number] < needed]
    if not rare:
        return notes
    named = [f"{displayable(classes[number])} ({counts[number]})" for number in rare]
    listed = ", ".join(named[:MAX_NAMED])
    if len(named) > MAX_NAMED:
        listed += f" and {len(named) - MAX_NAMED} more classes"
    takes = f"at a level of {level} a class takes at least {needed} validation examples"
    advice = "Add some (data.valid_share), evaluate with a lower --level, or use plain sets"
    return [*notes, f"Sets by class always hold {listed}: {takes}, given in brackets. {advice}."]


def other_shares(calibration: Calibration, classes: Sequence[str], test: Prediction) -> list[str]:
    """Return a sentence if the class shares of the validation part differ from those of the test
    part by more than chance: a χ² test of the label counts at :data:`SIGNIFICANCE`.

    Args:
        calibration, classes: as for :func:`few_examples`.
        test: prediction of the test part, with its labels.
    """
    if not calibration.class_examples:
        return []
    labels = test.require("labels").bincount(minlength=len(classes))
    # Examples of each part (row) and class (column).
    counts = np.array([calibration.class_examples, labels.tolist()])
    sizes = counts.sum(1, keepdims=True)
    expected = sizes * counts.sum(0) / counts.sum()
    is_rare = expected.min(0) < MIN_EXPECTED
    tested = counts[:, ~is_rare]
    if expected[:, is_rare].sum(1).min() >= MIN_EXPECTED:
        tested = np.column_stack([tested, counts[:, is_rare].sum(1)])
    if tested.shape[1] < 2:
        return []
    if chi2_contingency(tested, correction=False).pvalue >= SIGNIFICANCE:
        return []
    shares = counts / sizes
    change = np.abs(shares[0] - shares[1])
    # Largest difference of coverage, if the examples of each class are alike in both parts.
    distance = change.sum() / 2
    largest = change.argmax()
    name = displayable(classes[largest])
    before, after = (f"{100 * share:.1f} %" for share in shares[:, largest])
    return [
        f"The validation part has other class shares than the test part, by more than chance: "
        f"{name} has {before} and {after}. What plain sets and accepted answers promise is for "
        f"data like the validation part; by these shares alone the coverage of plain sets on the "
        f"test part may differ by up to {100 * distance:.1f} points. Draw both parts from the "
        f"same data, or use sets by class, which do not depend on the shares."
    ]


def reasons(level: float) -> dict[str, str]:
    """Return why an answer lies outside of its own set or interval, and what to do, by kind.

    Args:
        level: probability that a set or an interval holds the label.
    """
    share = f"{100 * level:g} %"
    return {
        EMPTY_SET: f"no class reaches the probability that sets ask for, and that true classes "
        f"have in {share} of the validation examples. Such an example is unlike these, or between "
        f"classes: give it to a person.",
        OUTSIDE_SET: f"sets by class ask each class for a probability that it has in {share} of "
        f"its own validation examples. The predicted class has less, and another has enough. Give "
        f"such an example to a person, or use plain sets, which hold the predicted class unless "
        f"they are empty.",
        OUTSIDE_INTERVAL: "an interval lies between quantiles, which validation data have moved, "
        "and the predicted number is the mean. Use the interval, or give the example to a person.",
    }


def outside_sets(calibration: Calibration, test: Prediction) -> list[str]:
    """Return sentences on test examples whose answer lies outside of its own set or interval: how
    many, why, and what to do.

    Args:
        calibration: of the run.
        test: prediction of the test part.
    """
    counts: dict[str, dict[str, int]] = {}
    if test.probs is None:
        low, high = calibration.intervals(test)
        is_outside = (test.predicted < low) | (test.predicted > high)
        counts = {OUTSIDE_INTERVAL: {"conformal interval": int(is_outside.sum())}}
    else:
        probs = class_probs(calibration.apply(test))
        for name, kind_of_sets in WITHOUT_TOP.items():
            sets = calibration.sets(probs, kind=kind_of_sets)
            is_empty = ~sets.any(1)
            is_outside = ~sets.gather(1, probs.argmax(1, keepdim=True)).squeeze(1)
            counts.setdefault(EMPTY_SET, {})[name] = int(is_empty.sum())
            counts.setdefault(OUTSIDE_SET, {})[name] = int((is_outside & ~is_empty).sum())
    notes = []
    for kind, by_name in counts.items():
        found = [f"{count} ({name})" for name, count in by_name.items() if count]
        if found:
            number = f"{' and '.join(found)} of {len(test)} test examples"
            notes.append(f"{kind.capitalize()}: {number}: {reasons(calibration.level)[kind]}")
    return notes
