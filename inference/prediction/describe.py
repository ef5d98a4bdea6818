"""Short description of a prediction."""

from typing import Any

from torch import Tensor

ROWS = 4
"""Number of examples that are shown."""


def describe(prediction: Any) -> str:
    """Return at most ten lines: kind and sizes, mean uncertainty, and the first examples."""
    if prediction.mask is not None:
        tokens = int(prediction.mask.sum())
        return f"{_heading(prediction)}\n  a label per token: use tokens() for its {tokens} real tokens"
    lines = [_heading(prediction)]
    if not len(prediction):
        return lines[0]
    if prediction.probs is not None:
        lines.append(_means(prediction))
        columns = {"class": prediction.predicted, "confidence": prediction.confidence, "entropy": prediction.entropy}
    elif prediction.is_binary:
        columns = {"labels": prediction.predicted, "confidence": prediction.confidence}
    else:
        columns = {"mean": prediction.mean, "sd": prediction.variance.sqrt()}
    lines += [
        f"  {row}: " + ", ".join(f"{name} {_number(values[row])}" for name, values in columns.items())
        for row in range(min(ROWS, len(prediction)))
    ]
    return "\n".join(lines + (["  …"] if len(prediction) > ROWS else []))


def _heading(prediction: Any) -> str:
    if prediction.probs is not None:
        kind = f"{prediction.probs.shape[-1]} {'ordered ' if prediction.ordered else ''}classes"
    elif prediction.is_binary:
        kind = "binary labels"
    else:
        kind = "numbers"
    samples = "" if prediction.num_samples is None else f", {prediction.num_samples} posterior samples"
    labels = "with" if prediction.labels is not None else "without"
    return f"Prediction of {kind} for {len(prediction)} examples{samples}, {labels} labels"


def _means(prediction: Any) -> str:
    values = {"confidence": prediction.confidence, "entropy": prediction.entropy}
    if prediction.expected_entropy is not None:
        values["mutual_information"] = prediction.mutual_information
    if prediction.labels is not None and prediction.labels.shape == prediction.predicted.shape:
        values["accuracy"] = prediction.predicted == prediction.labels.to(prediction.predicted.device)
    return "  means: " + ", ".join(f"{name} {value.double().mean().item():.3g}" for name, value in values.items())


def _number(value: Tensor) -> str:
    numbers = value.flatten().tolist()
    shown = " ".join(f"{number:.4g}" for number in numbers[:ROWS])
    return shown if len(numbers) <= ROWS else f"{shown} …"
