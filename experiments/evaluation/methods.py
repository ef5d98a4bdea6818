"""Uncertainty methods that a trained run can be evaluated with, by name; ``laplace+temperature`` is one on another."""

import functools
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import torch

from probattn.experiments.config.validation import SettingsError, unknown
from probattn.experiments.evaluation.guide_convergence import refitted
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.runs.sources import Part
from probattn.guides import Guide
from probattn.inference import SVDKL, Laplace, MCDropout, PosteriorPredictive, Prediction
from probattn.inference.imports import MissingExtraError
from probattn.inference.methods.features import Features, features
from probattn.inference.methods.temperature import fit_temperature, scale
from probattn.models import Supervised

POSTERIOR, ENSEMBLE = "posterior", "ensemble"
LAST_LAYER = {"laplace": Laplace, "sv-dkl": SVDKL}
TITLES = {
    POSTERIOR: "",
    "refit": "guide refitted",
    "mc-dropout": "MC dropout",
    "laplace": "KFLLLA",
    "sv-dkl": "SV-DKL",
    "temperature": "temperature scaling",
}
OF_NUMBERS = (POSTERIOR, "refit", "mc-dropout")
"""Methods of predictions of numbers; all are of classes."""
DEFAULT = ("temperature", "mc-dropout", "laplace", "sv-dkl")
"""Methods of a study of classes besides the posterior predictive."""


class Forward:
    """Forward pass of a run over its data, computed once, from the seed, for all methods that need no other."""

    def __init__(self, run: TrainedRun, data: Part, *, num_samples: int, seed: int) -> None:
        self.predictor = PosteriorPredictive(run.model, run.guide, num_samples=num_samples)
        self.batches, self.seed, self.has_classes = run.batches(data, by_length=True), seed, bool(run.dataset.classes)

    def seeded(self, function: Callable[[Any], Any]) -> Any:
        """Return what a function returns of the batches, from the seed."""
        torch.manual_seed(self.seed)
        return function(self.batches)

    @functools.cached_property
    def features(self) -> Features:
        """Inputs of the last layer, and the posterior predictive."""
        return self.seeded(functools.partial(features, self.predictor))

    @functools.cached_property
    def prediction(self) -> Prediction:
        """The posterior predictive."""
        return self.features.prediction if self.has_classes else self.seeded(self.predictor.predict)


Method = Callable[[Forward], Prediction]


def check(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of methods without repetitions, the posterior predictive first.

    Raises:
        SettingsError: a part of a name is unknown or in the wrong place.
        MissingExtraError: a method needs a library that is not installed.
    """
    for name in names:
        first, *rest = name.split("+")
        if strange := [part for part in (first, *rest) if part not in TITLES]:
            raise unknown("method", strange[0], TITLES, listing=f"known: {', '.join(TITLES)}")
        if rest not in ([], ["temperature"]) or rest == [first]:
            raise SettingsError(f"{name!r}: only temperature can follow a +, on top of another method")
        if first == "laplace" and find_spec("laplace") is None:
            raise MissingExtraError("the method laplace needs laplace-torch: pip install 'probattn[laplace]'")
    return tuple(dict.fromkeys((POSTERIOR, *names)))


def check_model(name: str, model: Supervised, guide: Guide, *, has_classes: bool, kl_weight: float) -> None:
    """Check that a method suits a model, before or after its training.

    Raises:
        SettingsError: a method of classes for numbers; ``refit`` without global latent variables or a KL weight above
            0; ``mc-dropout`` without dropout.
    """
    first = name.partition("+")[0]
    if name not in OF_NUMBERS and not has_classes:
        raise SettingsError(f"--method {name} is for classes, and this run predicts numbers: leave it out")
    if first == "refit" and not (kl_weight and guide.sites):
        raise SettingsError("--method refit needs global latent variables with a KL weight above 0: leave it out")
    if first == "mc-dropout":
        try:
            MCDropout(PosteriorPredictive(model, guide))
        except ValueError as error:
            raise SettingsError(f"--method mc-dropout: {error}, or leave it out") from error


def row_label(run: str, method: str) -> str:
    """Return the label of a run's row in a table: its name, and the method unless it is the posterior predictive."""
    if method.startswith(ENSEMBLE):
        return f"{run}, {method}"
    return " + ".join(filter(None, (run, *(TITLES[part] for part in method.split("+")))))


def fit(run: TrainedRun, name: str, *, num_samples: int, seed: int) -> Method:
    """Build the method of that name for a run, fitted from the seed if it needs fitting.

    Raises:
        SettingsError: as for :func:`check_model`.
    """
    common = {"has_classes": bool(run.dataset.classes), "kl_weight": run.settings.train.kl_weight}
    check_model(name, run.model, run.guide, **common)
    torch.manual_seed(seed)
    method = _fit_base(run, name.partition("+")[0], num_samples)
    if not name.endswith("temperature"):
        return method
    valid = Forward(run, run.dataset.valid, num_samples=num_samples, seed=seed)
    temperature = fit_temperature(_apply(method, valid))
    return lambda forward: scale(_apply(method, forward), temperature)


def _fit_base(run: TrainedRun, name: str, num_samples: int) -> Method:
    if name in LAST_LAYER:
        predictor = PosteriorPredictive(run.model, run.guide, num_samples=num_samples)
        last_layer = LAST_LAYER[name](predictor).fit(run.batches(run.dataset.train, by_length=True))
        return lambda forward: last_layer.predict_features(forward.features)
    if name == "mc-dropout":
        return lambda forward: MCDropout(forward.predictor).predict(forward.batches)
    if name == "refit":
        refit = PosteriorPredictive(*refitted(run), num_samples=num_samples)
        return lambda forward: forward.seeded(refit.predict)
    return lambda forward: forward.prediction


def predict(method: Method, forward: Forward) -> Prediction:
    """Return the prediction of a method, in the order of the data, by :meth:`TrainedRun.batches`."""
    return _apply(method, forward)[forward.batches.order.argsort()]


def _apply(method: Method, forward: Forward) -> Prediction:
    """Apply a method; its own draws start from the seed after that of the forward pass."""
    _ = forward.prediction
    torch.manual_seed(forward.seed + 1)
    return method(forward)
