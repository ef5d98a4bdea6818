"""What a run's predictions need to be acted on, fitted on its validation data and stored beside its weights."""

import json
import math
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass
from torch import Tensor

from probattn.inference import CheckpointError, Prediction
from probattn.inference.decisions.abstention import RiskThreshold
from probattn.inference.decisions.conformal import CQR, LAC, ByClass
from probattn.inference.io.files import write_bytes
from probattn.inference.methods.temperature import fit_temperature, scale

CALIBRATION = "calibration.json"


@dataclass(frozen=True, kw_only=True, config=ConfigDict(ser_json_inf_nan="strings"))
class Calibration:
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
    def fit(
        cls, valid: Prediction, *, weights: str, num_samples: int, seed: int, level: float = 0.9, max_risk: float = 0.05
    ) -> Self:
        """Fit to a prediction of validation data with its labels.

        Raises:
            ValueError: a level or a risk outside (0, 1); invalid probabilities or labels.

        Warns:
            FewExamplesWarning: the validation examples are few for the level.
        """
        if not 0 < level < 1:
            raise ValueError(f"the level of sets and intervals must lie between 0 and 1, got {level}")
        alpha, fitted = 1 - level, {}
        if valid.probs is None:
            quantile = CQR(alpha=alpha).fit_prediction(valid).quantile.item()
        else:
            fitted["temperature"] = fit_temperature(valid)
            scaled = scale(valid, fitted["temperature"])
            quantile = LAC(alpha=alpha).fit_prediction(scaled).quantile.item()
            fitted["class_quantiles"] = tuple(ByClass(alpha=alpha).fit_prediction(scaled).quantile.tolist())
            fitted["confidence"] = RiskThreshold(target=max_risk).fit_prediction(scaled).confidence
        common = {"weights": weights, "num_samples": num_samples, "seed": seed, "level": level, "max_risk": max_risk}
        return cls(**common, quantile=quantile, **fitted)

    def apply(self, prediction: Prediction) -> Prediction:
        """Scale the probabilities by the temperature; numbers stay as they are."""
        return prediction if self.temperature is None else scale(prediction, self.temperature)

    def sets(self, probs: Tensor, *, by_class: bool = False) -> Tensor:
        """Return the classes of each set, bool ``(n, classes)``, of scaled probabilities ``(n, classes)``.

        Args:
            probs: scaled probabilities.
            by_class: use the quantile of each class, so that rare classes are covered too.
        """
        quantile = probs.new_tensor(self.class_quantiles if by_class else self.quantile, dtype=probs.double().dtype)
        return 1 - probs.double() <= quantile

    def accepts(self, probs: Tensor) -> Tensor:
        """Return which answers are accepted, bool ``(n,)``, of scaled probabilities ``(n, classes)``."""
        return probs.double().amax(1) >= self.confidence

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends ``(n, 1)`` of calibrated intervals of numbers, in their units."""
        low, high = prediction.quantiles([(1 - self.level) / 2, (1 + self.level) / 2])
        return low - self.quantile, high + self.quantile

    def save(self, folder: Path) -> None:
        """Write ``calibration.json`` into the folder of a run."""
        write_bytes(folder / CALIBRATION, json.dumps(self.to_json(), indent=2).encode())

    def to_json(self) -> dict[str, Any]:
        """Return the values by name; infinite ones as text, which JSON can hold."""
        return json.loads(TypeAdapter(type(self)).dump_json(self))

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what :meth:`to_json` returns.

        Raises:
            CheckpointError: content of another form.
        """
        try:
            return TypeAdapter(cls).validate_python(content)
        except ValueError as error:
            raise CheckpointError(f"a calibration cannot be read ({error}): evaluate the run again") from error

    @classmethod
    def load(cls, folder: Path, *, weights: str) -> Self | None:
        """Read the calibration of a run with these weights; None if the run has none.

        Raises:
            CheckpointError: a damaged file, or a calibration of other weights.
        """
        path = folder / CALIBRATION
        if not path.exists():
            return None
        try:
            calibration = cls.from_json(json.loads(path.read_bytes()))
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged ({error}): evaluate the run again") from error
        if calibration.weights != weights:
            raise CheckpointError(f"{path} belongs to other weights: evaluate the run again")
        return calibration
