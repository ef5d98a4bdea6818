"""Posterior samples by stochastic gradient Langevin dynamics (Welling & Teh, 2011)."""

from collections.abc import Iterable

import pyro.poutine as poutine
import torch
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor

from probattn.guides import Program
from probattn.inference.batches import unpack_batch
from probattn.inference.posterior.frozen import frozen
from probattn.messages import is_latent, is_local
from probattn.threads import one_thread_at_a_time


@one_thread_at_a_time
def sgld(
    model: Program,
    data: Iterable,
    *,
    num_samples: int = 1000,
    warmup_steps: int = 1000,
    step_size: float = 1e-3,
) -> dict[str, Tensor]:
    """Sample the posterior of the global latent sites given the labels, one step per batch; weights
    are held fixed.

    Each step moves the unconstrained values z by −½ ε ∇U + √ε N(0, I) with U = −log p(z, y) of the
    batch, whose likelihood the model scales to the data set. There is no acceptance step; the bias
    of the stationary distribution is of order ε.

    Args:
        model: observes the labels that it is called with, e.g.
            :class:`~probattn.models.Supervised`.
        data: batches ``(x, y)`` or ``(x, y, mask)``, repeated as often as needed.
        num_samples: samples, one per step.
        warmup_steps: discarded steps before the first sample.
        step_size: ε.

    Returns:
        Samples ``(num_samples, *event)`` by site, which :func:`~probattn.inference.predict` and the
        predictive checks take instead of a guide.

    Raises:
        ValueError: a model with local latent sites.
    """
    batches = [unpack_batch(batch).arguments() for batch in data]
    with frozen(model):
        trace = poutine.trace(model).get_trace(*batches[0])
        for name, node in trace.nodes.items():
            if is_latent(node) and is_local(node, trace):
                raise ValueError(f"sgld samples global latent sites, and {name} is a local one")
        starts = [initialize_model(model, batch, init_strategy=init_to_sample) for batch in batches]
        state, _, transforms, _ = starts[0]
        samples: dict[str, list[Tensor]] = {name: [] for name in state}
        for step in range(warmup_steps + num_samples):
            _, potential, _, _ = starts[step % len(batches)]
            gradients, _ = potential_grad(potential, state)
            for name, gradient in gradients.items():
                noise = step_size**0.5 * torch.randn_like(gradient)
                state[name] = state[name] - 0.5 * step_size * gradient + noise
                if step >= warmup_steps:
                    samples[name].append(transforms[name].inv(state[name]))
    return {name: torch.stack(values) for name, values in samples.items()}
