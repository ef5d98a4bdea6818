"""The posterior predictive: averages over draws of the latent sites, streamed over a data set."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn import guides
from probattn.functional.errors import NumericalError
from probattn.handlers import draws, is_global_latent, local_posteriors, local_priors
from probattn.inference.diagnosis import find_non_finite, first_line, refuses_nan
from probattn.inference.predicted import Prediction
from probattn.inference.summary import join, summarise

__all__ = ["CPU_EXAMPLE_DRAWS", "GPU_EXAMPLE_DRAWS", "Prediction", "draw_latents", "predict"]

CPU_EXAMPLE_DRAWS = 256
"""Examples times draws that run at once on a CPU: more fall out of its caches and take a third longer."""
GPU_EXAMPLE_DRAWS = 16_384


def predict(
    model: nn.Module,
    guide: nn.Module | None,
    data: Tensor | Iterable,
    *,
    num_draws: int = 10,
    keep_draws: bool = False,
    latents: poutine.Trace | None = None,
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
        latents: what :func:`draw_latents` gives under ``draws(num_draws)``; by default it draws at the first batch.

    Raises:
        ValueError: no data; NaN or Inf in the inputs or the outputs, with the batch's number.
        NumericalError: what a layer's numerics refuse, with the batch's number and the layer.
    """
    repeated, parts = draws(num_draws), []
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
                        parts.append(summarise(likelihood, labels, home, num_draws=num_draws, keep_draws=keep_draws))
                except (ValueError, NumericalError) as error:
                    source = find_non_finite((), whole, ())
                    if isinstance(error, NumericalError):
                        because = f" (NaN or Inf in {source})" if source else ""
                        raise NumericalError(f"batch {number}: {error}{because}") from error
                    if source is None and not refuses_nan(error):
                        raise
                    why = f"from {source}" if source else first_line(error)
                    raise ValueError(f"NaN or Inf in the outputs of batch {number}, {why}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    if not parts:
        raise ValueError("no data to predict: the loader gave no batch")
    return join(parts)


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
