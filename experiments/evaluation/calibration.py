"""Calibration of a run: temperature, conformal sets or intervals, abstention; fitted to its
validation data."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

import pandas as pd
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from probattn.experiments.config.validation import Count, Seed
from probattn.inference import CheckpointError, Prediction
from probattn.inference.decisions.abstention import RiskThreshold
from probattn.inference.decisions.conformal import APS, CQR, LAC, RAPS, ByClass, ConformalSets
from probattn.inference.io.files import regular_file, undamaged, write_bytes
from probattn.inference.methods.scaling import TEMPERATURE_RANGE, fit_temperature, scale
from probattn.inference.metrics import regression
from probattn.inference.prediction.predictor import FewExamplesWarning, class_probs

CALIBRATION = "calibration.json"
# Types of a share, of a temperature, and of a probability or infinity, with room for rounding.
LEAST = -1e-6
Share = Annotated[float, Field(gt=0, lt=1)]
Temperature = Annotated[
    float, Field(ge=0.99 * TEMPERATURE_RANGE[0], le=1.01 * TEMPERATURE_RANGE[1])
]

Score = Annotated[float, Field(ge=LEAST)]
SETS: dict[str, Callable[..., ConformalSets]] = {
    "plain": LAC,
    "by-class": ByClass,
    "aps": APS,
    "raps": RAPS,
}
"""Conformal sets by the kinds that the command has."""
Adaptive = Literal["aps", "raps"]
RAPSOption = Literal["penalty", "free"]


class Calibration(BaseModel, frozen=True, extra="forbid", ser_json_inf_nan="strings"):
    """Temperature, conformal sets or intervals, and abstention of one run.

    Sets and abstention apply to the scaled probabilities, as :meth:`apply` returns them.

    Attributes:
        weights: SHA-256 of the weights that it was fitted with.
        num_samples, seed, refine: of the posterior samples of the validation data.
        level: probability that a set or interval holds the label.
        max_risk: largest error rate of the accepted answers.
        temperature: of the probabilities; None for numbers.
        quantile: q̂ of sets (LAC) or intervals (CQR); ∞ with too few validation examples.
        class_quantiles: q̂ of each class, for sets with the level in every class; empty for
            numbers.
        adaptive: q̂ of the kinds of adaptive sets; empty for numbers.
        raps: options of :class:`~probattn.inference.conformal.RAPS`.
        confidence: smallest confidence of an accepted answer, ∞ if none is; None for numbers.
        class_examples: number of validation examples of each class; empty for numbers.
        error_free: number of the most confident validation examples before the first error.
    """

    weights: str
    num_samples: Count
    seed: Seed
    refine: Share | None = None
    level: Share = 0.9
    max_risk: Share = 0.05
    temperature: Temperature | None = None
    quantile: Annotated[float, Field(gt=-math.inf)] = math.inf
    class_quantiles: tuple[Score, ...] = ()
    adaptive: dict[Adaptive, Score] = {}
    raps: dict[RAPSOption, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    confidence: Score | None = None
    class_examples: tuple[Annotated[int, Field(ge=0)], ...] = ()
    error_free: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_classes = self.temperature is not None
        has_confidence = self.confidence is not None
        if has_confidence != has_classes or bool(self.class_quantiles) != has_classes:
            raise ValueError(
                "temperature, confidence and class_quantiles are values of a model of classes"
            )
        if has_classes and self.quantile < LEAST:
            raise ValueError("the quantile of a model of classes is at least 0")
        return self

    @classmethod
    def fit(
        cls,
        valid: Prediction,
        *,
        level: float = 0.9,
        max_risk: float = 0.05,
        raps: Mapping[str, Any] = {},
        **origin: Any,
    ) -> Self:
        """Fit to a prediction of validation data with its labels.

        Args:
            valid: the prediction.
            level, max_risk, raps: as the attributes; options that ``raps`` lacks have their
                defaults.
            origin: ``weights``, ``num_samples`` and ``seed`` of the prediction.

        Raises:
            ValueError: a level or a risk outside (0, 1); invalid probabilities or labels.

        Warns:
            FewExamplesWarning: the validation examples are few for the level.
        """
        origin |= {"level": level, "max_risk": max_risk}
        if valid.probs is None:
            intervals = CQR(alpha=1 - level).fit_prediction(valid)
            return cls(**origin, quantile=intervals.quantile.item())
        temperature = fit_temperature(valid)
        scaled = scale(valid, temperature)
        with warnings.catch_warnings():  # of each class: decision_notes names those with too few
            warnings.simplefilter("ignore", FewExamplesWarning)
            by_class = ByClass(alpha=1 - level).fit_prediction(scaled)
            of_raps = RAPS(alpha=1 - level, **raps).fit_prediction(scaled)
            of_aps = APS(alpha=1 - level).fit_prediction(scaled)
        threshold = RiskThreshold(target=max_risk).fit_prediction(scaled)
        classes = len(by_class.quantile)
        return cls(
            **origin,
            temperature=temperature,
            quantile=LAC(alpha=1 - level).fit_prediction(scaled).quantile.item(),
            class_quantiles=tuple(by_class.quantile.tolist()),
            adaptive={"aps": of_aps.quantile.item(), "raps": of_raps.quantile.item()},
            raps={name: getattr(of_raps, name) for name in get_args(RAPSOption)},
            confidence=threshold.confidence,
            class_examples=tuple(valid.require("labels").bincount(minlength=classes).tolist()),
            error_free=int(threshold.error_free),
        )

    def apply(self, prediction: Prediction) -> Prediction:
        """Scale the probabilities by the temperature; numbers stay as they are."""
        return prediction if self.temperature is None else scale(prediction, self.temperature)

    def sets(self, probs: Tensor, *, kind: str = "plain") -> Tensor:
        """Return the classes of each set, bool ``(n, classes)``, of scaled probabilities
        ``(n, classes)``.

        Args:
            probs: scaled probabilities.
            kind: name of :data:`SETS`; those by class cover rare classes, too.

        Raises:
            ValueError: the calibration has no sets of that kind.
        """
        if kind not in self._quantiles:
            raise ValueError(f"the calibration has no {kind} sets: evaluate the run again")
        options = self.raps if kind == "raps" else {}
        scores = SETS[kind](alpha=1 - self.level, **options).scores(probs)
        return scores <= scores.new_tensor(self._quantiles[kind])

    @property
    def _quantiles(self) -> dict[str, Any]:
        adaptive = {str(kind): quantile for kind, quantile in self.adaptive.items()}
        return {"plain": self.quantile, "by-class": self.class_quantiles, **adaptive}

    def accepts(self, probs: Tensor) -> Tensor:
        """Return which answers are accepted, bool ``(n,)``, of scaled probabilities
        ``(n, classes)``."""
        return probs.double().amax(1) >= cast(float, self.confidence)

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends ``(n, 1)`` of calibrated intervals of numbers, in their
        units."""
        low, high = regression.interval(prediction, self.level)
        return low - self.quantile, high + self.quantile

    def evaluate(self, test: Prediction) -> dict[str, dict[str, float]]:
        """Evaluate the decisions on test data.

        Returns:
            For classes ``abstention`` (count of the accepted answers, their share and risk, its
            exact 95 % interval), and ``plain sets``, ``by-class sets`` and so on (coverage and mean
            size). For numbers ``conformal intervals`` (coverage and mean width).
        """
        labels = test.require("labels")
        if test.probs is None:
            low, high = self.intervals(test)
            inside = (low <= labels) & (labels <= high)
            width = (high - low).clamp(min=0)
            return {"conformal intervals": _means(coverage=inside, width=width)}
        probs = class_probs(self.apply(test))
        decisions = {"abstention": self._threshold().evaluate(probs, labels)}
        for kind in self._quantiles:
            sets = self.sets(probs, kind=kind)
            decisions[f"{kind} sets"] = _means(coverage=_covered(sets, labels), size=sets.sum(1))
        return decisions

    @property
    def abstention(self) -> str:
        """Condition of an accepted answer, or of a data set with which any is accepted."""
        return str(self._threshold())

    def _threshold(self) -> RiskThreshold:
        threshold = RiskThreshold(target=self.max_risk)
        threshold.confidence = cast(float, self.confidence)
        if self.error_free is not None:
            threshold.error_free = self.error_free
        threshold.fitted = True
        return threshold

    def by_class(
        self,
        test: Prediction,
        classes: Sequence[str],
    ) -> dict[str, dict[str, float]]:
        """Return ``n``, ``accuracy`` and coverage of both kinds of sets, by class with test
        examples; none for numbers."""
        if test.probs is None:
            return {}
        probs = class_probs(self.apply(test)).cpu()
        labels = test.require("labels").cpu()
        examples = pd.DataFrame(
            {
                "accuracy": probs.argmax(1) == labels,
                "coverage": _covered(self.sets(probs), labels),
                "coverage_by_class": _covered(self.sets(probs, kind="by-class"), labels),
            }
        )
        of_class = examples.groupby(labels.numpy())
        rows = of_class.mean().assign(n=of_class.size())
        rows = rows[["n", *examples]].to_dict("index")
        return {classes[number]: row for number, row in rows.items()}

    def to_json(self) -> bytes:
        """Return the content of ``calibration.json``."""
        return self.model_dump_json(indent=2).encode()

    def save(self, folder: Path) -> None:
        """Write ``calibration.json`` into the folder of a run."""
        write_bytes(folder / CALIBRATION, self.to_json())

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        weights: str,
        classes: int,
    ) -> Self | None:
        """Read the calibration of a run with these weights and this number of classes; None if the
        run has none.

        Raises:
            OtherWeightsError: it is a calibration of other weights.
            CheckpointError: it is damaged.
        """
        path = folder / CALIBRATION
        if not path.exists():
            return None
        with undamaged(path, CheckpointError, advice="evaluate the run again"):
            calibration = cls.model_validate_json(regular_file(path).read_bytes())
            if len(calibration.class_quantiles) != classes:
                raise ValueError(f"class_quantiles must be {classes}")
        if calibration.weights != weights:
            raise OtherWeightsError(f"{path} belongs to other weights: evaluate the run again")
        return calibration


class OtherWeightsError(CheckpointError):
    """A calibration of other weights, such as those before a run was resumed."""


def _covered(sets: Tensor, labels: Tensor) -> Tensor:
    """Return which sets, bool ``(n, classes)``, hold their label ``(n,)``."""
    return sets.gather(1, labels[:, None]).squeeze(1)


def _means(**values: Tensor) -> dict[str, float]:
    return {key: value.double().mean().item() for key, value in values.items()}
