"""Plain torch modules of a trained model: at the posterior mean, or with fixed posterior draws,
whose stored values stand in the place of sample statements."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn import draws
from probattn.draws import at_mean, expanded, mean_of, sample_dimension
from probattn.inference.objective import guide_checks
from probattn.inference.prediction.aggregate import summarise
from probattn.inference.prediction.latents import device, global_part, run_guide
from probattn.inference.prediction.predictor import SampledPredictor
from probattn.inference.prediction.replays import chunks
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.streaming import predict_batches
from probattn.messages import is_auxiliary, value_of
from probattn.pyro_internals import sampled_attributes
from probattn.sites import SiteModule
from probattn.threads import one_thread_at_a_time


class PosteriorNetwork(SampledPredictor):
    """Copy of a model in evaluation mode with the values of its global latent sites stored in
    buffers.

    Built by :func:`mean_network` and :func:`predictor_network`. It has no trainable parameters and
    is independent of further training of the model. Errors are those of
    :func:`~probattn.inference.predict`; exported, it returns NaN instead. Calls do not involve
    Pyro, so any number of threads may call one network at once; those with samples of a network
    converted by :func:`~probattn.models.replace_attention` change its modules, and wait for each
    other.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S, or None for the posterior mean.

    Raises:
        ValueError: a latent site outside the layers.
    """

    @one_thread_at_a_time
    def __init__(
        self, model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int | None
    ) -> None:
        super().__init__()
        self.num_samples = num_samples
        if guide is not None:
            guide_checks.check(model, guide)
        with torch.no_grad(), at_mean() if num_samples is None else draws(num_samples):
            sites = global_part(run_guide(model, guide, inputs)).nodes
        values = {name: value_of(site) for name, site in sites.items() if not is_auxiliary(site)}
        self.model: Any = copy.deepcopy(model)  # Supervised
        store(self.model, values, num_samples)
        self.eval().requires_grad_(False)

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs ``(n, ...)`` or the batches of a loader, all with the stored samples.

        Raises:
            ValueError, NumericalError: as :func:`~probattn.inference.predict` raises.
        """
        modules = {"model": self.model}
        number = self.num_samples or 1
        with torch.no_grad():
            prediction = predict_batches(data, self._likelihoods, modules, num_samples=number)
        return self._without_spread(prediction)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch with the stored samples.

        Raises:
            ValueError: outputs NaN or Inf.
            NumericalError: a layer's numerics failed.
        """
        likelihood = self._likelihood(x, mask)
        number = self.num_samples or 1
        prediction = summarise(likelihood, None, x.device, num_samples=number)
        return self._without_spread(prediction)

    def _likelihoods(
        self, x: Tensor, mask: Tensor | None
    ) -> Iterator[tuple[slice, dist.TorchDistribution]]:
        target = device(self.model)
        for rows in chunks(x, self.num_samples or 1):
            mask_of_rows = None if mask is None else mask[rows].to(target)
            yield rows, self._likelihood(x[rows].to(target), mask_of_rows)

    def _likelihood(self, x: Tensor, mask: Tensor | None) -> dist.TorchDistribution:
        with sample_dimension(self.num_samples):
            return self.model.likelihood_of(x, mask)

    def _without_spread(self, prediction: Prediction) -> Prediction:
        """Return a prediction at the posterior mean without the entropies that need samples."""
        if self.num_samples is None:
            return replace(prediction, expected_entropy=None)
        return prediction


def mean_network(model: nn.Module, guide: nn.Module | None, *inputs: Tensor) -> PosteriorNetwork:
    """Build a deterministic network with every latent site at its posterior mean.

    Local sites, such as SGPA's g, are at the mean of the posterior that their layer defines.

    Args:
        model: a :class:`~probattn.models.Supervised`.
        guide: as for :func:`~probattn.inference.predict`.
        inputs: arguments of the guide, if it uses them: guides of this library and Pyro's
            AutoGuides do not.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=None)


def predictor_network(
    model: nn.Module, guide: nn.Module | None, *inputs: Tensor, num_samples: int = 10
) -> PosteriorNetwork:
    """Build a network for the posterior predictive with S fixed draws of the global latent sites.

    Draw s is one function, also after export. Local sites are sampled in each call, from torch's
    global generator. The draws dimension appears at the first stochastic layer.

    Args:
        model, guide, inputs: as for :func:`mean_network`.
        num_samples: S.

    Returns:
        ``network(x, mask=None)``, a dict of tensors.
    """
    return PosteriorNetwork(model, guide, *inputs, num_samples=num_samples)


def store(network: nn.Module, values: dict[str, Tensor], num_samples: int | None) -> None:
    """Replace the sample statements of a network's modules, in place, by stored values of their
    global sites.

    Args:
        network: the network.
        values: by name of the site; they become buffers of its modules.
        num_samples: S, the number of draws of a local site in each call; None puts it at the mean
            of its posterior.

    Raises:
        ValueError: a site that belongs to none of them, such as a ``PyroSample`` or a statement of
            a user's own.
    """
    remaining = dict(values)
    for module in network.modules():
        if isinstance(module, SiteModule):
            for site in list(remaining):
                owner, _, name = site.rpartition(".")
                if owner == module.name:
                    value = remaining.pop(site).detach().clone()
                    module.register_buffer(f"value_{name}", value)
            statements = {
                "sample": partial(_stored, module),
                "sample_local": partial(_draw, num_samples),
            }
            vars(module).update(statements, is_scored=_is_not_scored)
    if sites := [*remaining, *sampled_attributes(network)]:
        raise ValueError(f"{', '.join(sites)} belongs to no layer of this library")


def _stored(module: SiteModule, name: str, prior: dist.TorchDistribution) -> Tensor:
    """Return the value of a global site.

    Raises:
        AttributeError: the guide has drawn none, or one for each example.
    """
    return getattr(module, f"value_{name}")


def _draw(
    num_samples: int | None,
    name: str,
    prior: dist.TorchDistribution,
    posterior: dist.TorchDistribution,
    **options: Any,
) -> Tensor:
    """Return S draws of a local site from its posterior, or its mean."""
    if num_samples is None:
        return mean_of(posterior, torch.broadcast_shapes(prior.batch_shape, posterior.batch_shape))
    if posterior.batch_shape != prior.batch_shape:
        posterior = posterior.expand(prior.batch_shape)
    return expanded(posterior, -2, num_samples).rsample()


def _is_not_scored() -> bool:
    return False
