"""Balanced weights of classes, and likelihoods of regressions in the units of the labels."""

import inspect

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from probattn.experiments.config.data import OwnTableSettings
from probattn.experiments.config.schema import find_object
from probattn.experiments.config.validation import SettingsError
from probattn.functional.dtypes import at_least_float32
from probattn.models.likelihoods import Gaussian, StudentT

SOFTPLUS_INVERSE_OF_1 = 0.5413248546129181


class ScaledHeteroscedastic(nn.Module):
    """Gaussian whose mean and noise depend on the input, in the units of the labels.

    Outputs ``(*draws, batch, 2)`` are m and a raw scale r. The mean of the labels is ``mean + std * m``, and the noise
    ``std * softplus(r + c)``, where c makes it ``std`` at r = 0.

    Args:
        mean, scale: mean and standard deviation of the training labels.
    """

    outputs = 2

    def __init__(self, *, mean: float, scale: float) -> None:
        super().__init__()
        self.register_buffer("units", torch.tensor([mean, scale]))

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels ``(batch, 1)``."""
        (location, raw), (mean, std) = at_least_float32(outputs).chunk(2, -1), self.units
        return dist.Normal(mean + std * location, std * (1e-3 + softplus(raw + SOFTPLUS_INVERSE_OF_1))).to_event(1)


# Likelihoods of regressions by name.
KNOWN = {"gaussian": Gaussian, "heteroscedastic": ScaledHeteroscedastic, "student-t": StudentT}


def regression_likelihood(data: OwnTableSettings, *, mean: float, std: float) -> tuple[nn.Module, bool]:
    """Build the likelihood of a table's numbers, and say whether its single output is in the units of the labels.

    The initial scale is the standard deviation of the labels. A class of your own has as many outputs as its attribute
    ``outputs`` says, 1 by default. One output is in the units of the labels if the constructor takes ``scale``.

    Args:
        data: settings of the table.
        mean, std: of the training labels.

    Raises:
        SettingsError: an unknown likelihood, or options that its constructor does not take.
    """
    constructor = KNOWN.get(data.likelihood) or find_object("likelihood", data.likelihood, KNOWN)
    takes = inspect.signature(constructor).parameters
    units = {name: value for name, value in (("mean", mean), ("scale", std)) if name in takes}
    try:
        likelihood = constructor(**units | data.likelihood_options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"data.likelihood={data.likelihood}: {error}; see data.likelihood_options") from error
    return likelihood, "scale" in takes and getattr(likelihood, "outputs", 1) == 1


def balanced_weights(labels: Tensor, *, classes: int) -> Tensor:
    """Return the weights n / (K n_c) of K classes in the loss, by which rare and frequent ones have the same in all.

    Args:
        labels: of the n training examples, n_c of them of class c.
        classes: K.
    """
    counts = labels.bincount(minlength=classes).clamp(min=1)
    return len(labels) / (classes * counts)
