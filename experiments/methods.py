"""The methods that a trained run can be evaluated with, by name; ``laplace+temperature`` is one on top of another."""

from collections.abc import Callable
from difflib import get_close_matches

import torch

from probattn.experiments.settings import SettingsError
from probattn.experiments.trained import TrainedRun
from probattn.inference.methods.dropout import mc_dropout
from probattn.inference.methods.laplace import laplace
from probattn.inference.methods.predictor import Predictor, posterior_predictive
from probattn.inference.methods.sv_dkl import sv_dkl
from probattn.inference.methods.temperature import temperature_scaled

POSTERIOR = "posterior"
MADE: dict[str, Callable[[TrainedRun, int], Predictor]] = {
    POSTERIOR: lambda run, draws: posterior_predictive(run.model, run.guide, num_draws=draws),
    "mc-dropout": lambda run, draws: mc_dropout(run.model, run.guide, num_draws=draws),
    "laplace": lambda run, draws: laplace(run.model, run.guide, run.batches(run.dataset.train), num_draws=draws),
    "sv-dkl": lambda run, draws: sv_dkl(run.model, run.guide, run.batches(run.dataset.train), num_draws=draws),
}
PUT_ON: dict[str, Callable[[TrainedRun, Predictor], Predictor]] = {
    "temperature": lambda run, predictor: temperature_scaled(predictor, run.batches(run.dataset.valid)),
}
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
        SettingsError: a part that is not known, or not in that place.
    """
    first, *rest = name.split("+")
    unknown = [part for part in (first, *rest) if part not in TITLES]
    if unknown:
        near = get_close_matches(unknown[0], TITLES, n=1)
        raise SettingsError(
            f"unknown method {unknown[0]!r}; {f'did you mean {near[0]}? ' if near else ''}known: {', '.join(TITLES)}"
        )
    if any(part not in PUT_ON for part in rest):
        raise SettingsError(f"{name!r}: only {', '.join(PUT_ON)} can stand behind a +, on top of another method")
    return name


def title(name: str) -> str:
    """How a table writes it; nothing for the plain posterior predictive."""
    return " + ".join(filter(None, (TITLES[part] for part in name.split("+"))))


def predictor(run: TrainedRun, name: str, *, num_draws: int, seed: int) -> Predictor:
    """The predictor of a run by a method of that name, fitted, where the method is, from the seed.

    Raises:
        SettingsError: an unknown name.
    """
    first, *rest = check(name).split("+")
    torch.manual_seed(seed)
    made = MADE.get(first, MADE[POSTERIOR])(run, num_draws)
    for part in [first, *rest] if first in PUT_ON else rest:
        torch.manual_seed(seed)
        made = PUT_ON[part](run, made)
    return made
