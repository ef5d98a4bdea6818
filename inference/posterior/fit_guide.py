"""A guide fitted to a small model whose weights are held fixed, and what every check of a posterior asks of the two."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from torch import Tensor, nn

from probattn import guides
from probattn.handlers import draws
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.programs import Program, as_module, local_params, modules

ELBO = Trace_ELBO | TraceMeanField_ELBO
Batch = tuple[Tensor, ...]
"""The arguments of a model: ``(x, y)`` or ``(x, y, mask)``."""


@contextmanager
def frozen(model: Program) -> Iterator[None]:
    """Evaluation mode without gradients for the parameters, which stay out of Pyro's store; afterwards as before."""
    held = nn.ModuleList(modules(model))
    modes = [(module, module.training) for module in held.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in held.parameters()]
    try:
        held.eval()
        held.requires_grad_(False)
        with local_params(model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def check_whole(model: Program, batch: Batch) -> Trace:
    """Refuses a program whose latent sites and labels do not count once: its density would be another posterior's.

    Returns:
        The trace that was looked at, with latent sites drawn from their priors.

    Raises:
        ValueError: a batch that stands for a larger data set, a weighted KL, or a ``z_o`` whose regulariser has a
            weight, named with what to do.
    """
    with frozen(model), torch.no_grad():
        trace = poutine.trace(model).get_trace(*batch)
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or site["infer"].get("is_auxiliary"):
            continue
        scale = torch.as_tensor(site["scale"], dtype=torch.float64)
        if torch.allclose(scale, torch.ones_like(scale), rtol=1e-6):
            continue
        remedy = "pass the whole data set as one batch, with a model built for num_data of its size"
        if site["infer"].get("regulariser"):
            remedy = 'build its layer with collapsed=True, which draws no z_o, or with alpha=1 and regulariser_norm="example"'
        raise ValueError(f"site {name} counts {scale.max().item():.3g} times in the log density: {remedy}")
    return trace


def fit_guide(
    model: Program,
    guide: Program,
    batch: Batch,
    *,
    steps: int = 1000,
    lr: float = 0.05,
    num_samples: int = 16,
    elbo: ELBO | None = None,
) -> Tensor:
    """Maximise the ELBO in the guide alone, the model in evaluation mode and untouched.

    Adam with a learning rate that falls to 0 along a cosine; KL in closed form where there is one. Sites of one example
    have their posteriors in their layers, which are part of the model.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, a function, or a model under handlers.
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or a function; changed in place.
        batch: ``(x, y)`` or ``(x, y, mask)``.
        steps: of Adam.
        lr: at the start.
        num_samples: draws of the latent sites that each step averages.
        elbo: an ELBO of :mod:`probattn.inference`; :class:`TraceMeanField_ELBO` by default.

    Returns:
        −ELBO in nats at each step, ``(steps,)``; empty for a guide without parameters.

    Raises:
        NonFiniteError: a loss that became NaN or Inf, with its source.
        ValueError: a guide of another model.
    """
    guide = as_module(guide)
    with frozen(model), local_params(guide):
        guides.materialise(guide, batch)
        guides.check(model, guide)
        parameters = [parameter for parameter in guide.parameters() if parameter.requires_grad]
        if not parameters:
            return torch.empty(0)
        optimiser = torch.optim.Adam(parameters, lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        elbo, losses = elbo or TraceMeanField_ELBO(), []
        for step in range(steps):
            optimiser.zero_grad()
            with draws(num_samples):
                loss = elbo.differentiable_loss(model, guide, *batch)
            if not loss.isfinite():
                source = find_non_finite(batch, {"model": as_module(model), "guide": guide}, elbo.traces)
                raise NonFiniteError(f"the loss of step {step} is {loss.item()}, from {source or 'the likelihood'}")
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
    optimiser.zero_grad()
    return torch.stack(losses)
