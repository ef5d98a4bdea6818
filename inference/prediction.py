"""The posterior predictive: averages over draws of the latent sites, streamed over a data set."""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn import guides
from probattn.functional.linalg import NumericalError
from probattn.handlers import draws, is_global_latent, local_posteriors, local_priors
from probattn.inference.diagnosis import find_non_finite, refuses_nan

CPU_EXAMPLE_DRAWS = 256
"""Examples times draws that run at once on a CPU: more fall out of its caches and take a third longer."""
GPU_EXAMPLE_DRAWS = 16_384


@dataclass(frozen=True, eq=False)
class Prediction:
    """The posterior predictive of n examples, averaged over S coherent draws.

    Entropies are in nats. The fields of the other kind of likelihood are None.

    Args:
        probs: mean probabilities ``(n, classes)``, per token ``(n, tokens, classes)`` (categorical likelihoods).
        expected_entropy: mean over draws of the entropy ``(n,)`` (categorical).
        energy: mean over draws of −log Σ exp(logits) ``(n,)`` (categorical, from logits).
        draws: probabilities of each draw ``(S, n, classes)`` where asked for (categorical).
        mean, variance: of the labels, noise and draws together, ``(n, ...)`` (other likelihoods).
        labels: the labels that came with the inputs, or None.
        components: the likelihood of each batch, with batch shape ``(S, batch)`` (all but one class per example).
    """

    probs: Tensor | None = None
    expected_entropy: Tensor | None = None
    energy: Tensor | None = None
    draws: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    labels: Tensor | None = None
    components: tuple[dist.TorchDistribution, ...] = ()

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities ``(n,)``: all uncertainty."""
        return _entropy(self.probs)

    @property
    def log_probs(self) -> Tensor:
        """Log of the mean probabilities, of their shape and finite: a zero counts as the smallest normal number."""
        return self.probs.clamp(min=torch.finfo(self.probs.dtype).tiny).log()

    @property
    def mutual_information(self) -> Tensor | None:
        """Entropy minus expected entropy ``(n,)``, ≥ 0: the uncertainty that more data could take away."""
        return None if self.expected_entropy is None else (self.entropy - self.expected_entropy).clamp(min=0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the mean over draws of the likelihood of labels ``(n, ...)``, in nats ``(n,)``.

        Raises:
            ValueError: labels of another shape.
        """
        if not self.components:
            return self.log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        sizes = [component.batch_shape[-1] for component in self.components]
        expected = (sum(sizes), *self.components[0].event_shape)
        if y.shape != expected:
            raise ValueError(f"the likelihood takes labels of shape {expected}, got {tuple(y.shape)}")
        parts = zip(self.components, y.split(sizes), strict=True)
        log_probs = [component.log_prob(part.to(component.mean.device)) for component, part in parts]
        return torch.cat([each.logsumexp(0) - math.log(len(each)) for each in log_probs]).to(y.device)


def predict(
    model: nn.Module,
    guide: nn.Module | None,
    data: Tensor | Iterable,
    *,
    num_draws: int = 10,
    keep_draws: bool = False,
) -> Prediction:
    """The posterior predictive of a batch or of a loader's batches, in evaluation mode.

    The draws are made once and shared by all batches: draw s is one function on the whole data set. Their dimension
    appears at the first stochastic layer, so that the layers below run once a batch. A loader's batches are seen one
    at a time, in pieces of a bounded number of examples times draws; what is kept of each is its part of the result.

    Args:
        model: the model, with its labels at the site ``y``.
        guide: its guide; None draws from the prior.
        data: inputs ``(n, ...)``, or an iterable of inputs, ``(x, y)`` or ``(x, y, mask)``.
        num_draws: S.
        keep_draws: whether to return the probabilities of each draw.

    Raises:
        ValueError: no data; NaN or Inf in the inputs or the outputs, with the batch's number.
        NumericalError: what a layer's numerics refuse, with the batch's number and the layer.
    """
    repeated, parts, latents = draws(num_draws), [], None
    whole = {"model": model} if guide is None else {"model": model, "guide": guide}
    if guide is not None:
        guides.check(model, guide)
    modes = [(module, module.training) for part in whole.values() for module in part.modules()]
    device = next(model.parameters()).device
    size = max(1, (CPU_EXAMPLE_DRAWS if device.type == "cpu" else GPU_EXAMPLE_DRAWS) // num_draws)
    try:
        for part in whole.values():
            part.eval()
        with torch.no_grad(), repeated:
            for number, (x, y, mask) in enumerate(_batches(data)):
                home = x.device
                if x.is_floating_point() and not x.isfinite().all():
                    raise ValueError(f"NaN or Inf in the inputs of batch {number}")
                inputs = (x.to(device), None, None if mask is None else mask.to(device))
                if latents is None:
                    if guide is not None and y is not None:
                        guides.materialise(guide, (inputs[0], y.to(device), inputs[2]))
                    latents = draw_latents(model, guide, inputs)
                try:
                    for start in range(0, len(x), size):
                        piece = slice(start, start + size)
                        likelihood = _likelihood(
                            model, guide, latents, tuple(None if part is None else part[piece] for part in inputs)
                        )
                        labels = None if y is None else y[piece]
                        parts.append(_summary(likelihood, labels, home, num_draws, keep_draws))
                except (ValueError, NumericalError) as error:
                    source = find_non_finite((), whole, ())
                    if isinstance(error, NumericalError):
                        because = f" (NaN or Inf in {source})" if source else ""
                        raise NumericalError(f"batch {number}: {error}{because}") from error
                    if source is None and not refuses_nan(error):
                        raise
                    why = f"from {source}" if source else str(error).splitlines()[0]
                    raise ValueError(f"NaN or Inf in the outputs of batch {number}, {why}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    if not parts:
        raise ValueError("no data to predict: the loader gave no batch")
    return _join(parts)


def draw_latents(model: nn.Module, guide: nn.Module | None, inputs: tuple) -> poutine.Trace:
    """The global latent sites of one run of the guide (or of the prior, for None), outside autocast.

    Raises:
        ValueError: an AutoGuide that has no parameters yet.
    """
    if guide is not None and guides.is_lazy(guide):
        raise ValueError("this AutoGuide has no parameters yet: call guides.materialise(guide, (x, y)) first")

    def prior(*_: Any) -> None:
        for site, distribution in guides.latent_sites(model):
            pyro.sample(site, distribution)

    with torch.autocast(next(model.parameters()).device.type, enabled=False):
        trace = poutine.trace(guide if guide is not None else prior).get_trace(*inputs)
    for name, node in list(trace.nodes.items()):  # the inputs, too, would keep the first batch in memory
        if not (node["type"] == "sample" and is_global_latent(node)):
            trace.remove_node(name)
    return trace


def _likelihood(
    model: nn.Module, guide: nn.Module | None, latents: poutine.Trace, inputs: tuple
) -> dist.TorchDistribution:
    """The likelihood of some examples given the global latents; local ones are drawn here."""
    with ExitStack() as handlers:
        if guide is not None:
            with torch.autocast(inputs[0].device.type, enabled=False):
                latents = poutine.trace(poutine.replay(guide, trace=latents)).get_trace(*inputs)
        handlers.enter_context(local_priors() if guide is None else local_posteriors())
        handlers.enter_context(poutine.mask(mask=False))
        return poutine.trace(poutine.replay(model, trace=latents)).get_trace(*inputs).nodes["y"]["fn"]


def _batches(data: Tensor | Iterable) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    for batch in (data,) if isinstance(data, Tensor) else data:
        x, y, mask = (*((batch,) if isinstance(batch, Tensor) else batch), None, None)[:3]
        yield x, y, mask


def _summary(
    likelihood: dist.TorchDistribution, labels: Tensor | None, home: torch.device, num_draws: int, keep_draws: bool
) -> Prediction:
    deterministic = len(likelihood.batch_shape) == 1
    if deterministic:
        likelihood = likelihood.expand((num_draws, *likelihood.batch_shape))
    categorical = _categorical(likelihood)
    if categorical is None:
        means, variances = likelihood.mean, likelihood.variance
        variance = variances.mean(0) + means.var(0, correction=0)
        return Prediction(
            mean=means.mean(0).to(home), variance=variance.to(home), labels=labels, components=(likelihood,)
        )
    probs = categorical.probs
    draws = probs.to(home) if keep_draws else None
    if deterministic:  # the mean of copies would differ from them in the last bit, and give mutual information
        probs = probs[:1]
    if not probs.isfinite().all():
        raise ValueError("the network's outputs are NaN or Inf: its weights are broken, load a checkpoint before that")
    energy = getattr(categorical, "energy", None)
    return Prediction(
        probs=probs.mean(0).to(home),
        expected_entropy=_entropy(probs).mean(0).to(home),
        energy=None if energy is None else energy[: len(probs)].mean(0).to(home),
        draws=draws,
        labels=labels,
        components=(likelihood,) if likelihood.event_shape else (),
    )


def _join(parts: list[Prediction]) -> Prediction:
    def cat(field: str, dim: int = 0) -> Tensor | None:
        values = [getattr(part, field) for part in parts]
        return None if values[0] is None else torch.cat(values, dim)

    return Prediction(
        **{field: cat(field) for field in ("probs", "expected_entropy", "energy", "mean", "variance", "labels")},
        draws=cat("draws", 1),
        components=tuple(component for part in parts for component in part.components),
    )


def _categorical(likelihood: dist.TorchDistribution) -> torch.distributions.Categorical | None:
    while isinstance(likelihood, (torch.distributions.Independent, dist.MaskedDistribution)):
        likelihood = likelihood.base_dist
    return likelihood if isinstance(likelihood, torch.distributions.Categorical) else None


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)
