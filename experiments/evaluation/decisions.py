"""What to do with an uncertain answer: when a run should abstain, and its conformal sets, checked on test data."""

from dataclasses import asdict
from typing import Any

import torch

from probattn.inference import Prediction
from probattn.inference.decisions import conformal
from probattn.inference.decisions.abstention import Threshold, risk_threshold
from probattn.inference.decisions.conformal import ConformalSets

TARGET, ALPHA = 0.05, 0.1
"""The risk that answers may have, and the chance that a set may miss the class."""
KINDS = {"plain": conformal.lac, "adaptive": conformal.aps}


def threshold(valid: Prediction) -> Threshold:
    """The threshold of confidence that keeps the risk under :data:`TARGET`, from validation data."""
    return risk_threshold(valid.probs, valid.labels, target=TARGET)


def sets(valid: Prediction) -> dict[str, ConformalSets]:
    """Plain and adaptive conformal sets that miss a class with a chance of :data:`ALPHA`, from validation data."""
    drawn = {"adaptive": {"generator": torch.Generator().manual_seed(0)}}
    return {kind: make(valid.probs, valid.labels, alpha=ALPHA, **drawn.get(kind, {})) for kind, make in KINDS.items()}


def acting(valid: Prediction, test: Prediction) -> dict[str, Any]:
    """What was chosen on validation data, and what it does on test data.

    Returns:
        ``abstention``: the threshold, and under ``test`` its check; ``plain`` and ``adaptive``: the evaluation of sets.
    """
    chosen = threshold(valid)
    found = {"abstention": asdict(chosen) | {"test": chosen.check(test.probs, test.labels)}}
    for kind, each in sets(valid).items():
        generator = torch.Generator().manual_seed(1)
        found[kind] = {"alpha": ALPHA} | each.evaluate(test.probs, test.labels, generator=generator)
    return found


def sentences(valid: Prediction, test: Prediction) -> list[str]:
    """The same in words."""
    found, chosen = acting(valid, test), threshold(valid)
    seen = found["abstention"]["test"]
    words = [str(chosen)]
    if seen["accepted"]:
        words.append(
            f"on the test data {100 * seen['coverage']:.1f} % are answered, {100 * seen['risk']:.2f} % of them wrong "
            f"(exact interval {100 * seen['low']:.2f} to {100 * seen['high']:.2f} %)"
        )
    for kind in KINDS:
        words.append(
            f"{kind} conformal sets that promise {100 * (1 - ALPHA):g} %: {100 * found[kind]['coverage']:.1f} % of the "
            f"test data covered, {found[kind]['size']:.2f} classes on average"
        )
    return words
