"""Predictors: modules with one interface, which uncertainty methods build on each other."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from probattn.inference.prediction.aggregate import class_probs
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction

POINT = ("probs", "energy", "mean", "variance")
UNCERTAINTY = ("entropy", "expected_entropy", "mutual_information")


class NotFittedError(RuntimeError):
    """A method that predicts before it was fitted, and before a fitted state was loaded."""


class FewExamplesWarning(UserWarning):
    """A method was fitted to so few examples, or errors, that its result is uncertain; says how
    much."""


class Predictor(nn.Module, ABC):
    """Base class of predictors: networks with posterior samples, and methods that change the
    predictions of others.

    A method takes a predictor, so methods stack. :meth:`fit` fits only its own state, never the
    predictor inside. The state dict holds all that :meth:`predict` needs besides the constructor's
    arguments, so ``save``, ``load`` and their safetensors variants take a predictor as they take a
    model. Predictors stay in evaluation mode.

    Attributes:
        not_exported: for predictors that no program can hold, what to export in their place.
    """

    not_exported: str = ""

    def fit(self, data: Iterable) -> Self:
        """Fit the method to labelled batches, and return it; methods without a state of their own
        read no data."""
        return self

    @abstractmethod
    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs ``(n, ...)`` or the batches of a loader, as
        :func:`~probattn.inference.predict` does."""

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch: by operations that ``torch.export`` records, without checks of values,
        where samples are stored; else as :meth:`predict` does."""
        return self.predict([(x, None, mask)])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Predict one batch as a dict of tensors, for :func:`~probattn.inference.export`.

        Args:
            x: inputs ``(batch, ...)``.
            mask: ``(batch, tokens)``, True at real tokens.

        Returns:
            Known fields of :class:`~probattn.inference.Prediction` by name: for classes ``probs``
            and ``energy``, and with samples ``entropy``, ``expected_entropy`` and
            ``mutual_information``; for other likelihoods ``mean`` and ``variance``. Decisions add
            their own, in a stack all of them.
        """
        prediction = self.predict_batch(x, mask)
        names = POINT if prediction.mutual_information is None else POINT + UNCERTAINTY
        return prediction.known(names) | prediction.decisions

    def train(self, mode: bool = True) -> Self:
        """Keep evaluation mode."""
        return super().train(False)


class SampledPredictor(Predictor):
    """Base class of predictors that run a model under posterior samples.

    Attributes:
        model: the model.
        num_samples: number of samples S; None at the posterior mean.
    """

    model: nn.Module
    num_samples: int | None


class PosteriorPredictive(SampledPredictor):
    """Posterior predictive of a trained model, with new posterior samples in each call.

    For a network with softmax attention only, the confidence is the maximum softmax probability
    (MSP) baseline of Hendrycks & Gimpel (2017). Two calls use independent samples from PyTorch's
    global generator: seed it before each to share them, or use
    :func:`~probattn.inference.predictor_network`, whose samples are fixed and which can be
    exported.

    Args:
        model, guide: as for :func:`~probattn.inference.predict`.
        num_samples: number of posterior samples S.
        refine: as for :func:`~probattn.inference.predict`.
    """

    not_exported = "it draws new samples in each call; put predictor_network in its place"
    num_samples: int

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module | None = None,
        *,
        num_samples: int = 10,
        refine: float | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.guide = guide
        self.num_samples = num_samples
        self.refine = refine

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs or batches; all share the samples of this call."""
        return predict(
            self.model, self.guide, data, num_samples=self.num_samples, refine=self.refine
        )


class FittedPredictor(Predictor):
    """Base class of methods with a state that :meth:`fit` computes; predictions are by default the
    predictor's own.

    Numbers of the state are attributes named by ``fitted_values``, NaN before the fit, and
    ``fitted_vector`` is the name of one of any length, float64 on the CPU; the state dict holds
    them in one tensor, its extra state. Other tensors are buffers or parameters.

    Args:
        predictor: the predictor whose predictions are changed; None if only those of others are
            passed, as to ``fit_prediction``.

    Attributes:
        fitted: True after a fit, or after a fitted state was loaded.
    """

    fitted_values: ClassVar[tuple[str, ...]] = ()
    fitted_vector: ClassVar[str] = ""

    def __init__(self, predictor: Predictor | None = None) -> None:
        super().__init__()
        self.predictor = cast(Predictor, predictor)
        self.fitted = False
        for name in self.fitted_values:
            setattr(self, name, math.nan)
        if self.fitted_vector:
            setattr(self, self.fitted_vector, torch.empty(0))

    def fit(self, data: Iterable) -> Self:
        """Fit the method to labelled batches, which were used neither for training nor for fitting
        anything else."""
        return self.fit_prediction(self.predictor.predict(data))

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Fit the method to a prediction with its labels."""
        raise NotImplementedError

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict as the predictor does."""
        return self.predictor.predict(data)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch as the predictor does."""
        return self.predictor.predict_batch(x, mask)

    def check_fitted(self) -> None:
        """Check that the method has a fitted state.

        Raises:
            NotFittedError: it has none.
        """
        if not self.fitted:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted: call fit(loader), or load its state"
            )

    def get_extra_state(self) -> Tensor:
        """Return ``fitted``, the fitted values and the fitted vector, in float64."""
        values = [getattr(self, name) for name in self.fitted_values]
        if self.fitted_vector:
            values += getattr(self, self.fitted_vector).tolist()
        return torch.tensor([self.fitted, *values], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set ``fitted``, the fitted values and the fitted vector."""
        fitted, *values = state.tolist()
        if self.fitted_vector:
            number = len(self.fitted_values)
            vector = torch.tensor(values[number:], dtype=torch.float64)
            setattr(self, self.fitted_vector, vector)
            values = values[:number]
        for name, value in zip(self.fitted_values, values, strict=True):
            setattr(self, name, value)
        self.fitted = bool(fitted)


class Decision(FittedPredictor):
    """Base class of decisions, which leave predictions as they are and add outputs to them."""

    @abstractmethod
    def decide(self, prediction: Prediction) -> dict[str, Tensor]:
        """Return the decision's outputs by name, on the prediction of a batch."""

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch as the predictor does, with this decision beside those inside.

        Raises:
            ValueError: a decision inside has outputs of the same names.
        """
        self.check_fitted()
        prediction = super().predict_batch(x, mask)
        inside = prediction.decisions
        own = self.decide(prediction)
        if twice := inside.keys() & own.keys():
            names = ", ".join(sorted(twice))
            raise ValueError(f"a decision inside gives {names}, too: put one of the two aside")
        return replace(prediction, decisions=inside | own)


def check_runs_model(predictor: Predictor | None, method: str) -> None:
    """Refuse a predictor without a model of its own, which the method would run itself.

    Raises:
        TypeError: says which predictor to take.
    """
    if predictor is not None and not hasattr(predictor, "model"):
        inside = type(predictor).__name__
        raise TypeError(
            f"{method} runs the model of its predictor, and {inside} has none: put {method} around "
            f"a PosteriorPredictive or predictor_network, and {inside} around {method}"
        )


def labelled_classes(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Return the mean probabilities ``(n, classes)`` of a prediction, and its labels ``(n,)`` on
    the same device.

    Raises:
        ValueError: no labels, or labels that are no class indices; as :func:`class_probs` raises.
    """
    probs = class_probs(prediction)
    examples, classes = probs.shape
    labels = class_labels(prediction.require("labels"), examples=examples, classes=classes)
    return probs, labels.to(probs.device)
