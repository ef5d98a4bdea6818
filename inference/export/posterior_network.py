"""A trained model as a plain torch module: at the mean of its posterior, or with draws that stay the same."""

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
SPREAD = ("entropy", "expected_entropy", "mutual_information")


class PosteriorNetwork(nn.Module):
    """A copy of a model in evaluation mode, with what it draws for all examples fixed in buffers.

    Built by :func:`mean_network` and :func:`predictor_network`. It does not change where the model trains on, and has
    nothing to train itself. Errors are those of :func:`~probattn.inference.predict`; exported, it gives NaN instead.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S, or None for the mean.
    """

    def __init__(self, model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int | None) -> None:
        super().__init__()
        self.num_samples = num_samples
        if guide is not None:
            guides.check(model, guide)
        with torch.no_grad(), self._drawn():
            latents = draw_latents(model, guide, inputs)
        self._buffers_of = {name: f"site/{name.replace('.', '/')}" for name in latents.nodes}
        for name, buffer in self._buffers_of.items():
            self.register_buffer(buffer, latents.nodes[name]["value"].detach().clone())
        self.model = copy.deepcopy(model)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """What ``predict`` says of a batch, by the names of :class:`~probattn.inference.Prediction`.

        Args:
            x: inputs ``(batch, ...)``.
            mask: ``(batch, tokens)``, True where there is a token.

        Returns:
            Of one class per example or token ``probs`` and ``energy``, and with draws ``entropy``, ``expected_entropy``
            and ``mutual_information``; of other labels ``mean`` and ``variance``.

        Raises:
            ValueError: a latent site that is fixed neither here nor by its layer; outputs that are NaN or Inf.
            NumericalError: what a layer's numerics refuse.
        """
        with ExitStack() as handlers:
            handlers.enter_context(local_params(self.model))
            if torch.compiler.is_exporting():
                handlers.enter_context(_without_looking())
            handlers.enter_context(self._drawn())
            fixed = handlers.enter_context(
                _Fixed({name: self.get_buffer(key) for name, key in self._buffers_of.items()})
            )
            handlers.enter_context(local_posteriors())
            handlers.enter_context(poutine.mask(mask=False))
            self.model(x, None, *(() if mask is None else (mask,)))
            found = summarise(fixed.likelihood, None, x.device, num_samples=self.num_samples or 1, keep_draws=False)
        names = POINT if self.num_samples is None or found.probs is None else POINT + SPREAD
        values = {name: getattr(found, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode."""
        return super().train(False)

    def _drawn(self) -> Messenger:
        return at_mean() if self.num_samples is None else draws(self.num_samples)


def mean_network(model: nn.Module, guide: nn.Module | None, *inputs: Tensor) -> PosteriorNetwork:
    """The model with every latent site at its posterior mean: one pass, nothing random.

    Sites of one example, such as SGPA's g, are at the mean of the posterior that their layer gives them.

    Args:
        model, guide: as for :func:`~probattn.inference.predict`.
        inputs: what the guide is called on, where it looks at its arguments: those of this library and Pyro's
            AutoGuides do not.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=None)


def predictor_network(
    model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int = 10
) -> PosteriorNetwork:
    """The posterior predictive with S draws made now and kept, whose dimension appears at the first stochastic layer.

    Draw s is one function, also after export. Sites of one example cannot be kept: they are drawn anew in each call,
    from torch's global generator.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=num_samples)


class _Fixed(Messenger):
    """Puts global sites at given values, and keeps the likelihood of the labels instead of drawing them."""

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
                f"site {name} is drawn neither once for all examples by the guide, nor by its layer with a posterior "
                "(sample_local): a network by itself has no value for it"
            )


@contextmanager
def _without_looking() -> Iterator[None]:
    """No branch inside depends on a value."""
    with errors.deferred(), pyro.validation_enabled(False):
        yield
