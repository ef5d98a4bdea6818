"""Uncertainty methods that a trained run can be evaluated with, by name; ``laplace+temperature`` is
one on another."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from probattn.experiments.config.validation import SettingsError, unknown
from probattn.experiments.data.dataset import Part
from probattn.experiments.evaluation.baselines import BASELINES, fit_baseline
from probattn.experiments.runs.load import Loader, TrainedRun
from probattn.guides import Guide
from probattn.inference import (
    SVDKL,
    BiasScaling,
    IsotonicScaling,
    Laplace,
    MCDropout,
    PosteriorPredictive,
    Prediction,
    TemperatureScaling,
    VectorScaling,
)
from probattn.inference.imports import MissingExtraError
from probattn.inference.methods.features import FeaturePredictor, Features, features
from probattn.inference.methods.gp_readout import with_gp_readout
from probattn.inference.methods.scaling import ScalingMethod
from probattn.inference.prediction.predictor import Predictor
from probattn.models import Supervised
from probattn.models.blocks import Transformer


class Method(NamedTuple):
    """An uncertainty method.

    Args:
        title: its name in tables.
        make: function from the posterior predictive to the method's predictor, before its fit.
        of_numbers: True if it also predicts numbers; all methods predict classes.
        parts: parts of the data that it is fitted to.
        scaling: of what another method predicts, fitted to the validation part.
    """

    title: str
    make: Callable[[PosteriorPredictive], Any] = lambda predictor: predictor
    of_numbers: bool = False
    parts: tuple[str, ...] = ("train",)
    scaling: Callable[[], ScalingMethod] | None = None


class _AnchoredReadout(NamedTuple):
    """GPs on all depths of a transformer of this library, or on the last features of another
    network."""

    predictor: PosteriorPredictive

    def fit(self, train: Iterable, valid: Iterable) -> PosteriorPredictive:
        """Return the fitted predictor."""
        if isinstance(self.predictor.model.network, Transformer):
            return with_gp_readout(self.predictor, train, valid, depths="all")
        return with_gp_readout(self.predictor, train, valid, depths="last")


POSTERIOR = "posterior"
ENSEMBLE = "ensemble"
BASELINE = "baseline"
METHODS = {
    POSTERIOR: Method("", of_numbers=True),
    "temperature": Method("temperature scaling", scaling=TemperatureScaling),
    "bias": Method("temperature and bias", scaling=BiasScaling),
    "vector": Method("vector scaling", scaling=VectorScaling),
    "isotonic": Method("isotonic regression", scaling=IsotonicScaling),
    "mc-dropout": Method("MC dropout", MCDropout, of_numbers=True),
    "laplace": Method("KFLLLA", Laplace),
    "sv-dkl": Method("SV-DKL", SVDKL),
    "anchored": Method("anchored readout", _AnchoredReadout, parts=("train", "valid")),
}
NAMES = (*METHODS, "mc-dropout+temperature", "laplace+temperature", "sv-dkl+temperature")


@dataclass(eq=False)
class Forward:
    """Forward pass of a run over its data from a seed, which all methods share that need no other.

    Args:
        run, data: the run, and a part of its data.
        num_samples, seed, refine: of the posterior samples; ``refine`` leaves the methods on the
            features of the last layer as they are.
    """

    run: TrainedRun
    data: Part
    _: KW_ONLY
    num_samples: int
    seed: int
    refine: float | None = None

    @cached_property
    def batches(self) -> Loader:
        """The data."""
        return self.run.batches(self.data, by_length=True)

    @cached_property
    def features(self) -> Features:
        """Inputs of the last layer, for classes."""
        predictor = self._predictor(refine=None)
        torch.manual_seed(self.seed)
        return features(predictor, self.batches)

    @cached_property
    def prediction(self) -> Prediction:
        """The posterior predictive, in the order of the batches."""
        if self.run.dataset.classes and self.refine is None:
            return self.features.prediction
        predictor = self._predictor(refine=self.refine)
        torch.manual_seed(self.seed)
        return predictor.predict(self.batches)

    def _predictor(self, *, refine: float | None) -> PosteriorPredictive:
        return PosteriorPredictive(
            self.run.model, self.run.guide, num_samples=self.num_samples, refine=refine
        )

    def predict(self, method: Predictor) -> Prediction:
        """Return the prediction of a fitted method, whose own draws start from the seed after that
        of the pass."""
        torch.manual_seed(self.seed + 1)
        if isinstance(method, FeaturePredictor):
            return method.predict_features(self.features)
        if isinstance(method, PosteriorPredictive) and method.model is self.run.model:
            return self.prediction
        return method.predict(self.batches)


def check(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of methods without repetitions, the posterior predictive first.

    Raises:
        SettingsError: an unknown name.
        MissingExtraError: a method needs a library that is not installed.
    """
    for name in names:
        if name not in NAMES:
            raise unknown("method", name, NAMES, listing=f"known: {', '.join(NAMES)}")
        if name.startswith("laplace") and find_spec("laplace") is None:
            raise MissingExtraError(
                "the method laplace needs laplace-torch: pip install 'probattn[laplace]'"
            )
    return tuple(dict.fromkeys((POSTERIOR, *names)))


def check_model(
    name: str,
    model: Supervised,
    guide: Guide,
    *,
    has_classes: bool,
) -> None:
    """Check that a method suits a model, before or after its training.

    Raises:
        SettingsError: a method of classes for numbers; ``mc-dropout`` without dropout.
    """
    if not has_classes and not all(METHODS[step].of_numbers for step in name.split("+")):
        raise SettingsError(
            f"--method {name} is for classes, and this run predicts numbers: leave it out"
        )
    try:
        METHODS[name.partition("+")[0]].make(PosteriorPredictive(model, guide))
    except ValueError as error:
        raise SettingsError(f"--method {name}: {error}, or leave it out") from error


def row_label(run: str, method: str) -> str:
    """Return the label of a run's row in a table: its name, and the method unless it is the
    posterior predictive."""
    if method.startswith(ENSEMBLE):
        return f"{run}, {method}"
    if method.startswith(f"{BASELINE}/"):
        return BASELINES[method.removeprefix(f"{BASELINE}/")].title
    parts = [run]
    for step in method.split("+"):
        title = METHODS[step].title if step in METHODS else step
        parts += [title] if title else []
    return " + ".join(parts)


def fit(
    run: TrainedRun,
    name: str,
    *,
    num_samples: int,
    seed: int,
    refine: float | None = None,
) -> Callable[[Forward], Prediction]:
    """Fit the method or baseline of that name to a run from the seed, and return the function that
    predicts by it.

    Predictions are in the order of the data.

    Raises:
        SettingsError: as for :func:`check_model`.
    """
    kind, _, baseline = name.partition("/")
    if kind == BASELINE:
        predict_part = fit_baseline(baseline, run.dataset)
        return lambda forward: predict_part(forward.data)
    check_model(name, run.model, run.guide, has_classes=bool(run.dataset.classes))
    torch.manual_seed(seed)
    predictor = PosteriorPredictive(run.model, run.guide, num_samples=num_samples)
    about = METHODS[name.partition("+")[0]]
    loaders = (run.batches(getattr(run.dataset, role), by_length=True) for role in about.parts)
    method = about.make(predictor).fit(*loaders)
    scaling = None
    if new_scaling := METHODS[name.rpartition("+")[2]].scaling:
        valid = Forward(
            run,
            run.dataset.valid,
            num_samples=num_samples,
            seed=seed,
            refine=refine,
        )
        scaling = new_scaling().fit_prediction(valid.predict(method))

    def predict(forward: Forward) -> Prediction:
        prediction = forward.predict(method)[forward.batches.order.argsort()]
        return prediction if scaling is None else scaling.scaled(prediction)

    return predict
