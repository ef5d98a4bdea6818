"""Split-conformal sets of classes (see :mod:`~probattn.inference.decisions.conformal`)."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Self

import torch
from torch import Generator, Tensor

from probattn.inference.decisions.conformal_predictor import ConformalPredictor, conformal_quantile
from probattn.inference.metrics.classification import validate
from probattn.inference.prediction.predictor import class_probs, labelled
from probattn.inference.prediction.result import Prediction


class ConformalSets(ConformalPredictor):
    """Base class of conformal prediction sets: the classes whose score is at most the calibrated quantile.

    Exported, they add ``set``, bool ``(batch, classes)``, to the outputs of their predictor.

    Args:
        predictor: any predictor of one class per example; None to decide on predictions of others.
        alpha: allowed probability of missing the true class, 0 < alpha < 1.

    Attributes:
        quantile: q̂; ∞, so that sets hold all classes, if there are n < 1/α − 1 calibration examples.
        classes: number of classes of the calibration data.
    """

    fitted_values = ("alpha", "quantile", "classes")
    quantile: float
    classes: float

    @abstractmethod
    def score(self, probs: Tensor, generator: Generator | None) -> Tensor:
        """Return the nonconformity scores ``(n, classes)`` of probabilities of that shape, in float64."""

    def fit(self, data: Iterable, *, generator: Generator | None = None) -> Self:
        """Calibrate on labelled batches, which nothing was fitted to."""
        return self.fit_prediction(self.base().predict(data), generator=generator)

    def fit_prediction(self, prediction: Prediction, *, generator: Generator | None = None) -> Self:
        """Calibrate on a prediction with its labels.

        Args:
            prediction: prediction of calibration examples, which nothing was fitted to.
            generator: generator for randomised scores (:class:`APS`), on the CPU; None uses PyTorch's global one.

        Raises:
            ValueError: invalid probabilities or labels, as in :mod:`probattn.inference.metrics`.
        """
        probs, labels = validate(class_probs(prediction), labelled(prediction))
        scores = self.score(probs, generator).gather(1, labels[:, None])[:, 0]
        self.quantile, self.classes, self.fitted = float(conformal_quantile(scores, self.alpha)), probs.shape[1], True
        return self

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Predict one batch, with ``set``; random numbers are from PyTorch's global generator."""
        self.check_fitted()
        outputs = super().forward(x, mask)
        return outputs | {"set": self.score(outputs["probs"].double(), None) <= self.quantile}

    def predict_set(self, data: Tensor | Iterable, *, generator: Generator | None = None) -> Tensor:
        """Predict inputs or batches, and return their :meth:`sets`."""
        return self.sets(class_probs(self.predict(data)), generator=generator)

    def sets(self, probs: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Return membership of each class in the set of each example, bool ``(n, classes)``.

        Args:
            probs: mean probabilities ``(n, classes)``.
            generator: as for :meth:`fit_prediction`.

        Raises:
            ValueError: another number of classes than in calibration; invalid probabilities.
        """
        self.check_fitted()
        checked, _ = validate(probs, torch.zeros(len(probs), dtype=torch.long))
        if checked.shape[1] != self.classes:
            raise ValueError(
                f"these conformal sets were calibrated on {self.classes:g} classes, and the prediction has "
                f"{checked.shape[1]}: calibrate on predictions of the same model"
            )
        return (self.score(checked, generator) <= self.quantile).to(probs.device)

    def evaluate(self, probs: Tensor, labels: Tensor, *, generator: Generator | None = None) -> dict[str, float]:
        """Evaluate the sets on test data.

        Returns:
            ``coverage``, the share of sets with the true class; ``size``, the mean number of classes per set;
            ``empty`` and ``singletons``, the shares of sets with no class and with one.
        """
        probs, labels = validate(probs, labels)
        sets = self.sets(probs, generator=generator)
        size = sets.sum(dim=1)
        return {
            "coverage": float(sets.gather(1, labels[:, None]).double().mean()),
            "size": float(size.double().mean()),
            "empty": float((size == 0).double().mean()),
            "singletons": float((size == 1).double().mean()),
        }


class LAC(ConformalSets):
    """Least ambiguous sets (LAC; Sadinle, Lei & Wasserman, 2019): all classes of probability ≥ 1 − q̂.

    The score is 1 − p. These sets have the smallest mean size; difficult examples may have empty ones. Arguments are
    those of :class:`ConformalSets`.
    """

    def score(self, probs: Tensor, generator: Generator | None) -> Tensor:
        """Return 1 − p."""
        return 1 - probs


class APS(ConformalSets):
    """Adaptive prediction sets (APS; Romano, Sesia & Candès, 2020), which grow with an example's difficulty.

    The score is the total probability of all more probable classes, plus u times that of the class; u ~ U(0, 1) is
    sampled per example, in calibration and in use, so that coverage is exact with tied or few probabilities, too.
    Arguments are those of :class:`ConformalSets`.
    """

    def score(self, probs: Tensor, generator: Generator | None) -> Tensor:
        """Return the total probability of more probable classes, plus u times that of the class."""
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        like = probs[:, :1]
        u = torch.rand_like(like) if generator is None else torch.empty_like(like).uniform_(generator=generator)
        scores = ordered.cumsum(dim=1) - (1 - u) * ordered
        return torch.empty_like(scores).scatter_(1, order, scores)
