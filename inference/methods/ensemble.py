"""Deep ensembles (Lakshminarayanan et al., 2017): equally weighted mixtures of predictors of any
kind."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from probattn.inference.prediction.predictor import Decision, Predictor, class_probs
from probattn.inference.prediction.refine import batches_of, least_confident, refined
from probattn.inference.prediction.result import Prediction


def mix(predictions: Sequence[Prediction]) -> Prediction:
    """Mix predictions of the same examples, in the same order, with equal weights.

    Probabilities, expected entropy and energy are means over members, so the mutual information
    includes disagreement within and between members. Draws are concatenated to
    ``(Σ S, n, classes)``. The expected entropy of a member of one sample is its entropy. Optional
    fields that a member lacks are None.

    Args:
        predictions: one or more predictions with ``probs (n, classes)``.

    Raises:
        ValueError: no predictions, or not of one class per example; different labels, examples or
            classes; different numbers of draws, whose mean would differ from that of the members.
    """
    if not predictions:
        raise ValueError("a mixture has at least one member")
    shapes = [tuple(class_probs(prediction).shape) for prediction in predictions]
    if any(shape != shapes[0] for shape in shapes):  # of symbols in programs, which no set takes
        raise ValueError(f"members must predict the same examples and classes, got {shapes}")
    labels = predictions[0].labels
    if not all(_same(prediction.labels, labels) for prediction in predictions):
        raise ValueError(
            "the labels of the members differ: each must see the examples in one order; do not "
            "shuffle"
        )
    draws = _of_all(predictions, "draws")
    numbers = [len(values) for values in draws]
    if len(set(numbers)) > 1:
        raise ValueError(f"members have different numbers of draws: {numbers}")
    predictions = list(map(_with_entropy, predictions))
    means: dict[str, Any] = {}
    for name in ("probs", "expected_entropy", "energy"):
        if values := _of_all(predictions, name):
            means[name] = torch.stack(values).mean(0)
    return Prediction(
        **means,
        draws=torch.cat(draws) if draws else None,
        labels=labels,
        num_samples=sum(_of_all(predictions, "num_samples")) or None,
    )


class Ensemble(Predictor):
    """Equally weighted mixture of predictors, such as those of several seeds (Lakshminarayanan et
    al., 2017).

    Predicting iterates over the data once per member; the order must be the same each time. A
    loader that shuffles is detected by its labels, if it has any. Members are fitted before.

    Args:
        members: one or more predictors.
        refine: share in (0, 1] of the inputs that all members predict: those with the least
            confidence of the first member. ``samples_used`` of a prediction tells which. None: all.

    Raises:
        ValueError: members with decisions, which have no mean.
        ValueError: from :meth:`predict`, as :func:`mix` does, and for an iterator, which is empty
            after the first member.
    """

    def __init__(self, members: Iterable[Predictor], *, refine: float | None = None) -> None:
        super().__init__()
        self.members = cast(Sequence[Predictor], nn.ModuleList(members))
        if any(isinstance(module, Decision) for module in self.modules()):
            raise ValueError("an ensemble has no mean of decisions: put them around it")
        self.refine = refine

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict with all members, and mix."""
        first, *others = self.members
        if self.refine is None or not others:
            return mix([member.predict(data) for member in self.members])
        prediction = first.predict(data)
        rows = least_confident(prediction, self.refine)
        chosen = batches_of(data, rows)
        there = mix([prediction[rows], *(member.predict(chosen) for member in others)])
        return refined(prediction, there, rows)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch with all members, and mix."""
        first, *others = self.members
        if self.refine is None or not others:
            return mix([member.predict_batch(x, mask) for member in self.members])
        prediction = first.predict_batch(x, mask)
        rows = least_confident(prediction, self.refine)
        chosen = x[rows], None if mask is None else mask[rows]
        there = mix([prediction[rows], *(member.predict_batch(*chosen) for member in others)])
        return refined(prediction, there, rows)


def _with_entropy(prediction: Prediction) -> Prediction:
    """Return a prediction by one function with its entropy as the expected one."""
    if prediction.num_samples != 1 or prediction.expected_entropy is not None:
        return prediction
    return replace(prediction, expected_entropy=prediction.entropy)


def _of_all(predictions: Sequence[Prediction], name: str) -> list[Any]:
    """Return a field of each prediction; nothing if one of them lacks it."""
    values = [getattr(prediction, name) for prediction in predictions]
    return [] if any(value is None for value in values) else values


def _same(labels: Tensor | None, others: Tensor | None) -> bool:
    return labels is others if labels is None or others is None else torch.equal(labels, others)
