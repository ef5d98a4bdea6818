"""Calibration of a run: temperature, conformal sets or intervals, abstention; fitted to its validation data."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel
from torch import Tensor

from probattn.inference import CheckpointError, Prediction
from probattn.inference.decisions.abstention import RiskThreshold
from probattn.inference.decisions.conformal import CQR, LAC, ByClass
from probattn.inference.io.files import write_bytes
from probattn.inference.methods.temperature import fit_temperature, scale
from probattn.inference.prediction.predictor import FewExamplesWarning, class_probs
from probattn.inference.programs import required

CALIBRATION = "calibration.json"


class Calibration(BaseModel, frozen=True, ser_json_inf_nan="strings"):
    """Temperature, conformal sets or intervals, and abstention of one run.

    Sets and abstention apply to the scaled probabilities, as :meth:`apply` returns them.

    Attributes:
        weights: SHA-256 of the weights that it was fitted with.
        num_samples, seed: of the posterior samples of the validation data.
        level: probability that a set or interval holds the label.
        max_risk: largest error rate of the accepted answers.
        temperature: of the probabilities; None for numbers.
        quantile: q̂ of sets (LAC) or intervals (CQR); ∞ with too few validation examples.
        class_quantiles: q̂ of each class, for sets with the level in every class; empty for numbers.
        confidence: smallest confidence of an accepted answer, ∞ if none is; None for numbers.
    """

    weights: str
    num_samples: int
    seed: int
    level: float = 0.9
    max_risk: float = 0.05
    temperature: float | None = None
    quantile: float = math.inf
    class_quantiles: tuple[float, ...] = ()
    confidence: float | None = None

    @classmethod
    def fit(cls, valid: Prediction, *, level: float = 0.9, max_risk: float = 0.05, **origin: Any) -> Self:
        """Fit to a prediction of validation data with its labels.

        Args:
            valid: the prediction.
            level, max_risk: as the attributes.
            origin: ``weights``, ``num_samples`` and ``seed`` of the prediction.

        Raises:
            ValueError: a level or a risk outside (0, 1); invalid probabilities or labels.

        Warns:
            FewExamplesWarning: the validation examples are few for the level.
        """
        origin |= {"level": level, "max_risk": max_risk}
        if valid.probs is None:
            return cls(**origin, quantile=CQR(alpha=1 - level).fit_prediction(valid).quantile.item())
        temperature = fit_temperature(valid)
        scaled = scale(valid, temperature)
        with warnings.catch_warnings():  # of each class: the report says how few examples it has
            warnings.simplefilter("ignore", FewExamplesWarning)
            class_quantiles = ByClass(alpha=1 - level).fit_prediction(scaled).quantile.tolist()
        return cls(
            **origin,
            temperature=temperature,
            quantile=LAC(alpha=1 - level).fit_prediction(scaled).quantile.item(),
            class_quantiles=tuple(class_quantiles),
            confidence=RiskThreshold(target=max_risk).fit_prediction(scaled).confidence,
        )

    def apply(self, prediction: Prediction) -> Prediction:
        """Scale the probabilities by the temperature; numbers stay as they are."""
        return prediction if self.temperature is None else scale(prediction, self.temperature)

    def sets(self, probs: Tensor, *, by_class: bool = False) -> Tensor:
        """Return the classes of each set, bool ``(n, classes)``, of scaled probabilities ``(n, classes)``.

        Args:
            probs: scaled probabilities.
            by_class: use the quantile of each class, so that rare classes are covered too.
        """
        probs = probs.double()
        return 1 - probs <= probs.new_tensor(self.class_quantiles if by_class else self.quantile)

    def accepts(self, probs: Tensor) -> Tensor:
        """Return which answers are accepted, bool ``(n,)``, of scaled probabilities ``(n, classes)``."""
        return probs.double().amax(1) >= required(self.confidence)

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends ``(n, 1)`` of calibrated intervals of numbers, in their units."""
        low, high = prediction.quantiles([(1 - self.level) / 2, (1 + self.level) / 2])
        return low - self.quantile, high + self.quantile

    def evaluate(self, test: Prediction) -> dict[str, dict[str, float]]:
        """Evaluate the decisions on test data.

        Returns:
            For classes ``abstention`` (count of the accepted answers, their share and risk, its exact 95 % interval),
            ``plain sets`` and ``by-class sets`` (coverage and mean size). For numbers ``conformal intervals`` (coverage
            and mean width).
        """
        labels = test.require("labels")
        if test.probs is None:
            low, high = self.intervals(test)
            inside = (low <= labels) & (labels <= high)
            return {"conformal intervals": _means(coverage=inside, width=(high - low).clamp(min=0))}
        probs = class_probs(self.apply(test))
        threshold = RiskThreshold(target=self.max_risk)
        threshold.confidence, threshold.fitted = required(self.confidence), True
        sets = {"plain sets": self.sets(probs), "by-class sets": self.sets(probs, by_class=True)}
        return {"abstention": threshold.evaluate(probs, labels)} | {
            name: _means(coverage=_covered(members, labels), size=members.sum(1)) for name, members in sets.items()
        }

    def by_class(self, test: Prediction, classes: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return ``n``, ``accuracy`` and coverage of both kinds of sets, by class with test examples."""
        probs, labels = class_probs(self.apply(test)), test.require("labels")
        scores = {"accuracy": probs.argmax(1) == labels, "coverage": _covered(self.sets(probs), labels)}
        scores["coverage_by_class"] = _covered(self.sets(probs, by_class=True), labels)
        rows: dict[str, dict[str, float]] = {}
        for number in labels.unique().tolist():
            of_class = {key: values[labels == number] for key, values in scores.items()}
            rows[classes[number]] = {"n": len(of_class["accuracy"]), **_means(**of_class)}
        return rows

    def save(self, folder: Path) -> None:
        """Write ``calibration.json`` into the folder of a run."""
        write_bytes(folder / CALIBRATION, self.model_dump_json(indent=2).encode())

    @classmethod
    def load(cls, folder: Path, *, weights: str) -> Self | None:
        """Read the calibration of a run with these weights; None if the run has none.

        Raises:
            CheckpointError: it is a calibration of other weights.
        """
        path = folder / CALIBRATION
        if not path.exists():
            return None
        calibration = cls.model_validate_json(path.read_bytes())
        if calibration.weights != weights:
            raise CheckpointError(f"{path} belongs to other weights: evaluate the run again")
        return calibration


def _covered(sets: Tensor, labels: Tensor) -> Tensor:
    """Return which sets, bool ``(n, classes)``, hold their label ``(n,)``."""
    return sets.gather(1, labels[:, None]).squeeze(1)


def _means(**values: Tensor) -> dict[str, float]:
    return {key: value.double().mean().item() for key, value in values.items()}
