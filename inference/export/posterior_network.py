"""Plain torch modules of a trained model: at the posterior mean, or with fixed posterior draws."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Self

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn import guides
from probattn.functional import errors
from probattn.handlers import at_mean, draws, is_amortised, local_posteriors
from probattn.inference.prediction.aggregate import summarise
from probattn.inference.prediction.latents import draw_latents
from probattn.programs import local_params

POINT = ("probs", "energy", "mean", "variance")
UNCERTAINTY = ("entropy", "expected_entropy", "mutual_information")


class PosteriorNetwork(nn.Module):
    """Copy of a model in evaluation mode with the values of its global latent sites stored in buffers.

    Built by :func:`mean_network` and :func:`predictor_network`. It has no trainable parameters and is independent of
    further training of the model. Errors are those of :func:`~probattn.inference.predict`; exported, it returns NaN
    instead.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S, or None for the posterior mean.
    """

    def __init__(self, model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int | None) -> None:
        super().__init__()
        self.num_samples = num_samples
        if guide is not None:
            guides.check(model, guide)
        with torch.no_grad(), self._draws():
            latents = draw_latents(model, guide, inputs)
        self._buffer_of_site = {name: f"site/{name.replace('.', '/')}" for name in latents.nodes}
        for name, buffer in self._buffer_of_site.items():
            self.register_buffer(buffer, latents.nodes[name]["value"].detach().clone())
        self.model = copy.deepcopy(model)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return the posterior predictive of a batch, by attribute names of :class:`~probattn.inference.Prediction`.

        Args:
            x: inputs ``(batch, ...)``.
            mask: ``(batch, tokens)``, True at real tokens.

        Returns:
            For one class per example or token: ``probs`` and ``energy``, and with draws ``entropy``,
            ``expected_entropy`` and ``mutual_information``; for other likelihoods: ``mean`` and ``variance``.

        Raises:
            ValueError: a latent site with neither a stored value nor a posterior in its layer; outputs NaN or Inf.
            NumericalError: a layer's numerics failed.
        """
        with ExitStack() as handlers:
            handlers.enter_context(local_params(self.model))
            if torch.compiler.is_exporting():
                handlers.enter_context(_without_data_dependence())
            handlers.enter_context(self._draws())
            values = {name: self.get_buffer(buffer) for name, buffer in self._buffer_of_site.items()}
            substitute = handlers.enter_context(_SubstituteSites(values))
            handlers.enter_context(local_posteriors())
            handlers.enter_context(poutine.mask(mask=False))
            self.model(x, None, *(() if mask is None else (mask,)))
            prediction = summarise(
                substitute.likelihood, None, x.device, num_samples=self.num_samples or 1, keep_draws=False
            )
        names = POINT if self.num_samples is None or prediction.probs is None else POINT + UNCERTAINTY
        outputs = {name: getattr(prediction, name) for name in names}
        return {name: value for name, value in outputs.items() if value is not None}

    def train(self, mode: bool = True) -> Self:
        """Keep evaluation mode."""
        return super().train(False)

    def _draws(self) -> Messenger:
        return at_mean() if self.num_samples is None else draws(self.num_samples)


def mean_network(model: nn.Module, guide: nn.Module | None, *inputs: Tensor) -> PosteriorNetwork:
    """Build a deterministic network with every latent site at its posterior mean.

    Local sites, such as SGPA's g, are at the mean of the posterior that their layer defines.

    Args:
        model, guide: as for :func:`~probattn.inference.predict`.
        inputs: arguments of the guide, if it uses them: guides of this library and Pyro's AutoGuides do not.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=None)


def predictor_network(
    model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int = 10
) -> PosteriorNetwork:
    """Build a network for the posterior predictive with S fixed draws of the global latent sites.

    Draw s is one function, also after export. Local sites are sampled in each call, from torch's global generator. The
    draws dimension appears at the first stochastic layer.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=num_samples)


class _SubstituteSites(Messenger):
    """Handler that sets global sites to given values and records the likelihood of the labels without sampling."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values
        self.likelihood: dist.TorchDistribution | None = None

    def _pyro_sample(self, msg: Message) -> None:
        name = msg["name"]
        if name == "y":
            self.likelihood = msg["value"] = msg["fn"]
            msg["done"] = True
        elif name in self.values:
            msg["value"], msg["done"] = self.values[name], True
        elif isinstance(msg["fn"], TorchDistributionMixin) and not (msg["is_observed"] or is_amortised(msg)):
            raise ValueError(
                f"site {name} is neither a global site of the guide nor a local site whose layer defines its posterior "
                "(sample_local): a network without the guide has no value for it"
            )


@contextmanager
def _without_data_dependence() -> Iterator[None]:
    """Context manager without data-dependent branches: checks are deferred, validation is off."""
    with errors.deferred(), pyro.validation_enabled(False):
        yield
