"""The methods that a trained run can be evaluated with, by name; ``laplace+temperature`` is one on top of another."""

import functools
from collections.abc import Callable
from difflib import get_close_matches
from importlib.util import find_spec

import torch

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.runs.load import TrainedRun
from probattn.inference import Prediction
from probattn.inference.methods.features import Features, features
from probattn.inference.methods.laplace import laplace
from probattn.inference.methods.mc_dropout import mc_dropout
from probattn.inference.methods.sv_dkl import sv_dkl
from probattn.inference.methods.temperature import fit_temperature, scale

POSTERIOR = "posterior"


class CachedForward:
    """A run's pass over some images or texts, made once, from the seed, for all methods that need no more than it."""

    def __init__(self, run: TrainedRun, data: Images | Texts, *, num_samples: int, seed: int) -> None:
        self.run, self.num_samples, self.seed = run, num_samples, seed
        self.batches = run.batches(data)

    @functools.cached_property
    def found(self) -> Features:
        """What the last layer saw, and the posterior predictive."""
        torch.manual_seed(self.seed)
        return features(self.run.model, self.run.guide, self.batches, num_samples=self.num_samples)


Method = Callable[[CachedForward], Prediction]


def _posterior(run: TrainedRun, draws: int) -> Method:
    return lambda seen: seen.found.prediction


def _mc_dropout(run: TrainedRun, draws: int) -> Method:
    predictor = mc_dropout(run.model, run.guide, num_samples=draws)
    return lambda seen: predictor(seen.batches)


def _laplace(run: TrainedRun, draws: int) -> Method:
    batches = run.batches(run.dataset.train)
    predictor = laplace(
        run.model, run.guide, batches, num_samples=draws, link="draws"
    )  # the probit's mean has no draws

    def predicted(seen: CachedForward) -> Prediction:
        found = seen.found
        torch.manual_seed(seen.seed)  # of the last layer's draws, the same for every set
        return predictor.predict_features(found)

    return predicted


def _sv_dkl(run: TrainedRun, draws: int) -> Method:
    predictor = sv_dkl(run.model, run.guide, run.batches(run.dataset.train), num_samples=draws)
    return lambda seen: predictor.predict_features(seen.found)


def _temperature(under: Method, valid: CachedForward) -> Method:
    temperature = fit_temperature(apply(under, valid))
    return lambda seen: scale(apply(under, seen), temperature)


BASE_METHODS: dict[str, Callable[[TrainedRun, int], Method]] = {
    POSTERIOR: _posterior,
    "mc-dropout": _mc_dropout,
    "laplace": _laplace,
    "sv-dkl": _sv_dkl,
}
WRAPPERS: dict[str, Callable[[Method, CachedForward], Method]] = {"temperature": _temperature}
TITLES = {
    POSTERIOR: "",
    "mc-dropout": "MC dropout",
    "laplace": "KFLLLA",
    "sv-dkl": "SV-DKL",
    "temperature": "temperature scaling",
}


def check(name: str) -> str:
    """The method's name.

    Raises:
        SettingsError: a part that is not known, not in that place, or whose library is not installed.
    """
    first, *rest = name.split("+")
    unknown = [part for part in (first, *rest) if part not in TITLES]
    if unknown:
        near = get_close_matches(unknown[0], TITLES, n=1)
        raise SettingsError(
            f"unknown method {unknown[0]!r}; {f'did you mean {near[0]}? ' if near else ''}known: {', '.join(TITLES)}"
        )
    if any(part not in WRAPPERS for part in rest):
        raise SettingsError(f"{name!r}: only {', '.join(WRAPPERS)} can stand behind a +, on top of another method")
    if first == "laplace" and find_spec("laplace") is None:
        raise SettingsError("the method laplace needs laplace-torch: pip install probattn[laplace]")
    return name


def title(name: str) -> str:
    """How a table writes it; nothing for the plain posterior predictive."""
    return " + ".join(filter(None, (TITLES[part] for part in name.split("+"))))


def fitted(run: TrainedRun, name: str, *, num_samples: int, seed: int) -> Method:
    """The method of that name, fitted to a run, where it is fitted, from the seed.

    Raises:
        SettingsError: an unknown name.
    """
    first, *rest = check(name).split("+")
    torch.manual_seed(seed)
    made = BASE_METHODS.get(first, _posterior)(run, num_samples)
    for part in [first, *rest] if first in WRAPPERS else rest:
        made = WRAPPERS[part](made, CachedForward(run, run.dataset.valid, num_samples=num_samples, seed=seed))
    return made


def apply(method: Method, seen: CachedForward) -> Prediction:
    """The prediction of a method; what it draws itself starts from the seed after that of the pass."""
    _ = seen.found
    torch.manual_seed(seen.seed + 1)
    return method(seen)
