"""Uncertainty methods that a trained run can be evaluated with, by name; ``laplace+temperature`` is one on another."""

import functools
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec

import torch

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.tables.table_dataset import Table
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.guide_convergence import refitted
from probattn.experiments.runs.load import TrainedRun
from probattn.inference import Prediction
from probattn.inference import predict as posterior_prediction
from probattn.inference.imports import MissingExtraError
from probattn.inference.methods.features import Features, features
from probattn.inference.methods.laplace import Laplace
from probattn.inference.methods.mc_dropout import MCDropout
from probattn.inference.methods.sv_dkl import SVDKL
from probattn.inference.methods.temperature import fit_temperature, scale
from probattn.inference.prediction.aggregate import PER_EXAMPLE
from probattn.inference.prediction.predictor import PosteriorPredictive

POSTERIOR = "posterior"


class CachedForward:
    """Forward pass of a run over its data, computed once, from the seed, for all methods that need no other."""

    def __init__(self, run: TrainedRun, data: Images | Texts | Table, *, num_samples: int, seed: int) -> None:
        self.run, self.num_samples, self.seed = run, num_samples, seed
        self.batches = run.batches_by_length(data)

    @functools.cached_property
    def features(self) -> Features:
        """Inputs of the last layer, and the posterior predictive."""
        torch.manual_seed(self.seed)
        return features(_predictor(self.run, self.num_samples), self.batches)

    @functools.cached_property
    def prediction(self) -> Prediction:
        """The posterior predictive."""
        if self.run.dataset.classes:
            return self.features.prediction
        torch.manual_seed(self.seed)
        return posterior_prediction(self.run.model, self.run.guide, self.batches, num_samples=self.num_samples)


Method = Callable[[CachedForward], Prediction]


def _predictor(run: TrainedRun, num_samples: int) -> PosteriorPredictive:
    return PosteriorPredictive(run.model, run.guide, num_samples=num_samples)


def _posterior(run: TrainedRun, num_samples: int) -> Method:
    return lambda forward: forward.prediction


def _refit(run: TrainedRun, num_samples: int) -> Method:
    model, guide = refitted(run)

    def predict(forward: CachedForward) -> Prediction:
        torch.manual_seed(forward.seed)
        return posterior_prediction(model, guide, forward.batches, num_samples=num_samples)

    return predict


def _mc_dropout(run: TrainedRun, num_samples: int) -> Method:
    predictor = MCDropout(_predictor(run, num_samples))
    return lambda forward: predictor.predict(forward.batches)


def _laplace(run: TrainedRun, num_samples: int) -> Method:
    predictor = Laplace(_predictor(run, num_samples)).fit(run.batches_by_length(run.dataset.train))
    return lambda forward: predictor.predict_features(forward.features)


def _sv_dkl(run: TrainedRun, num_samples: int) -> Method:
    predictor = SVDKL(_predictor(run, num_samples)).fit(run.batches_by_length(run.dataset.train))
    return lambda forward: predictor.predict_features(forward.features)


def _temperature(base: Method, valid: CachedForward) -> Method:
    temperature = fit_temperature(_apply(base, valid))
    return lambda forward: scale(_apply(base, forward), temperature)


BASE_METHODS: dict[str, Callable[[TrainedRun, int], Method]] = {
    POSTERIOR: _posterior,
    "refit": _refit,
    "mc-dropout": _mc_dropout,
    "laplace": _laplace,
    "sv-dkl": _sv_dkl,
}
WRAPPERS: dict[str, Callable[[Method, CachedForward], Method]] = {"temperature": _temperature}
TITLES = {
    POSTERIOR: "",
    "refit": "guide refitted",
    "mc-dropout": "MC dropout",
    "laplace": "KFLLLA",
    "sv-dkl": "SV-DKL",
    "temperature": "temperature scaling",
}
LIBRARIES = {"laplace": ("laplace-torch",), "sv-dkl": ("gpytorch",)}


def check(name: str) -> str:
    """Return the name of a method if it is valid.

    Raises:
        SettingsError: a part is unknown or in the wrong place.
        MissingExtraError: it needs a library that is not installed.
    """
    first, *rest = name.split("+")
    unknown = [part for part in (first, *rest) if part not in TITLES]
    if unknown:
        near = get_close_matches(unknown[0], TITLES, n=1)
        raise SettingsError(
            f"unknown method {unknown[0]!r}; {f'did you mean {near[0]}? ' if near else ''}known: {', '.join(TITLES)}"
        )
    if any(part not in WRAPPERS for part in rest):
        raise SettingsError(f"{name!r}: only {', '.join(WRAPPERS)} can follow a +, on top of another method")
    if first == "laplace" and find_spec("laplace") is None:
        raise MissingExtraError("the method laplace needs laplace-torch: pip install 'probattn[laplace]'")
    return name


def libraries(name: str) -> tuple[str, ...]:
    """Return the libraries that a method needs besides those of every prediction."""
    return LIBRARIES.get(name.partition("+")[0], ())


def title(name: str) -> str:
    """Return the name of a method for tables; empty for the posterior predictive alone."""
    return " + ".join(filter(None, (TITLES[part] for part in name.split("+"))))


def row_label(run: str, method: str) -> str:
    """Return the label of a run's row in a table: its name, and the method unless it is the posterior predictive."""
    return " + ".join(filter(None, (run, title(method))))


def fit(run: TrainedRun, name: str, *, num_samples: int, seed: int) -> Method:
    """Build the method of that name for a run, fitted from the seed if it needs fitting.

    Raises:
        SettingsError: an unknown name, another method than the posterior predictive for a regression, or ``refit`` for
            a run without global latent variables or with a KL weight of 0.
    """
    first, *rest = check(name).split("+")
    if name != POSTERIOR and not run.dataset.classes:
        raise SettingsError(f"--method {name} is for classes, and {run.folder} predicts numbers; leave it out")
    if first == "refit" and not (run.settings.train.kl_weight and run.guide.sites):
        raise SettingsError(
            f"--method refit needs global latent variables with a KL weight above 0, which {run.folder} has not"
        )
    torch.manual_seed(seed)
    method = BASE_METHODS.get(first, _posterior)(run, num_samples)
    for part in [first, *rest] if first in WRAPPERS else rest:
        method = WRAPPERS[part](method, CachedForward(run, run.dataset.valid, num_samples=num_samples, seed=seed))
    return method


def predict(method: Method, forward: CachedForward) -> Prediction:
    """Return the prediction of a method, in the order of the data, by :meth:`TrainedRun.batches_by_length`."""
    prediction, order = _apply(method, forward), forward.batches.order
    if order is None:
        return prediction
    fields = {name: getattr(prediction, name) for name in PER_EXAMPLE}
    rank = order.argsort()
    moved = {name: None if value is None else value[rank.to(value.device)] for name, value in fields.items()}
    return replace(prediction, **moved)


def _apply(method: Method, forward: CachedForward) -> Prediction:
    """Apply a method; its own draws start from the seed after that of the forward pass."""
    _ = forward.prediction
    torch.manual_seed(forward.seed + 1)
    return method(forward)
