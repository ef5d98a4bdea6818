"""Check that a model's log joint is the unscaled density of a whole data set."""

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from torch import Tensor

from probattn.guides import Program
from probattn.inference.posterior.frozen import frozen


def check_unit_scales(model: Program, batch: tuple[Tensor, ...]) -> Trace:
    """Check that every sample site has scale 1: otherwise the log joint is that of a different posterior.

    Args:
        model: the model.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.

    Returns:
        The trace that was checked, with latent sites sampled from their priors.

    Raises:
        ValueError: a batch that is scaled to a larger data set, a KL weight, or a ``z_o`` whose regulariser has a
            weight; the message names the site and the remedy.
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
            remedy = (
                'build its layer with collapsed=True, which has no z_o, or with alpha=1 and regulariser_norm="example"'
            )
        raise ValueError(f"site {name} has scale {scale.max().item():.3g} in the log joint instead of 1: {remedy}")
    return trace
