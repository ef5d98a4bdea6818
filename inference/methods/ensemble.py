"""Deep ensembles (Lakshminarayanan et al., 2017): equally weighted mixtures of predictors of any
kind."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from probattn.inference.prediction.aggregate import mix
from probattn.inference.prediction.predictor import Decision, Predictor
from probattn.inference.prediction.refine import batches_of, least_confident, refined
from probattn.inference.prediction.result import Prediction


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
        self.members: Any = nn.ModuleList(members)
        if any(isinstance(module, Decision) for module in self.modules()):
            raise ValueError("an ensemble has no mean of decisions: put them around it")
        self.refine = refine
        if refine is not None:
            self.not_exported = "its members predict other inputs in each call; leave out refine"

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
        if self.refine is not None:
            return super().predict_batch(x, mask)
        return mix([member.predict_batch(x, mask) for member in self.members])
