"""The shape k̂ of the importance ratios between the posterior and a guide: can the guide stand for the posterior?"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from pyro.poutine import Trace
from torch import Tensor, nn

from probattn import guides
from probattn.distributions import MarginalWithJointKL
from probattn.handlers import draws, is_global_latent
from probattn.inference.elbo import Trace_ELBO
from probattn.inference.posterior.fit_guide import Batch, check_whole, frozen
from probattn.inference.prediction.predict import CPU_CHUNK_SIZE

GOOD = 0.7
"""Below it, importance sampling corrects the guide; above it the guide is too far away (Yao et al., 2018)."""


@dataclass(frozen=True, eq=False)
class PSIS:
    """Importance ratios of a guide's draws, smoothed at their Pareto tail; ``print`` it to read it.

    Args:
        khat: the tail's shape; −inf where all ratios are equal, since the guide then is the posterior; inf where too
            few ratios stand out to fit a tail.
        log_weights: log p(latents, y) − log q(latents) of each draw, in nats, not normalised, ``(draws,)``.
        smoothed: their logarithms after smoothing, normalised to weights that sum to 1, ``(draws,)``.
    """

    khat: float
    log_weights: Tensor
    smoothed: Tensor

    @property
    def ess(self) -> float:
        """Effective number of draws, 1 / Σ w² of the smoothed weights."""
        return (-(2 * self.smoothed).logsumexp(0)).exp().item()

    def __str__(self) -> str:
        verdict = "can stand for the posterior" if self.khat < GOOD else "is far from the posterior"
        count = len(self.log_weights)
        return f"k̂ = {self.khat:.2f} (threshold {GOOD}): the guide {verdict}; {self.ess:.0f} effective of {count} draws"


def psis_khat(model: nn.Module, guide: nn.Module, batch: Batch, *, num_samples: int = 1000) -> PSIS:
    """Pareto k̂ of the importance ratios between posterior and guide (Yao et al., 2018, Algorithm 1).

    One joint diagnosis of all latent sites, those of single examples included; the more scalars, the stricter. The
    posterior is that of :func:`~probattn.inference.posterior.nuts.nuts`, penalties included, up to its constant.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` of the batch's size.
        guide: its guide, fitted.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.
        num_samples: how many; 1000 or more.

    Raises:
        ImportError: without ``arviz``.
        ValueError: a guide of points, which has no density; a program whose sites do not count once (see
            :func:`~probattn.inference.posterior.fit_guide.check_whole`).
    """
    psislw = _psislw()
    check_whole(model, batch)
    guides.materialise(guide, batch)
    guides.check(model, guide)
    size = max(2, CPU_CHUNK_SIZE // len(batch[0]))
    pieces = [size] * (num_samples // size) + ([num_samples % size] if num_samples % size else [])
    with frozen(model), torch.no_grad():
        log_weights = torch.cat([_log_weights(model, guide, batch, piece) for piece in pieces]).cpu()
    rounding = math.sqrt(torch.finfo(log_weights.dtype).eps) * (1 + log_weights.abs().max())
    log_weights = log_weights.double()
    if log_weights.max() - log_weights.min() <= rounding:
        return PSIS(-math.inf, log_weights, torch.full_like(log_weights, -math.log(num_samples)))
    smoothed, khat = psislw(log_weights.numpy())
    return PSIS(float(khat), log_weights, torch.as_tensor(smoothed))


def _log_weights(model: nn.Module, guide: nn.Module, batch: Batch, number: int) -> Tensor:
    """log p(latents, y) − log q(latents) of that many draws, in nats."""
    elbo = Trace_ELBO()
    with draws(number):
        elbo.differentiable_loss(model, guide, *batch)
    joint, proposal = elbo.traces
    for name, site in proposal.nodes.items():
        if is_global_latent(site) and number > 1 and torch.equal(site["value"][0], site["value"][1]):
            raise ValueError(f"this guide has a point at {name}, not a density: there are no importance ratios")
        if site["type"] == "sample" and isinstance(
            counted := getattr(site["fn"], "base_dist", site["fn"]), MarginalWithJointKL
        ):
            # Its log density holds the KL of what it stands for; the ratio needs that of what was drawn.
            site["log_prob"] = site["scale"] * counted.drawn.log_prob(site["value"])
    return _log_density(joint, number) - _log_density(proposal, number)


def _log_density(trace: Trace, number: int) -> Tensor:
    """Of each draw; ``draws`` has divided by their number what has a dimension of them, ``(number, batch or 1)``."""
    log_probs = [site["log_prob"] for site in trace.nodes.values() if site["type"] == "sample"]
    return sum(number * each.sum(-1) if each.dim() > 1 else each.sum() for each in log_probs)


def _psislw() -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    try:
        from arviz import psislw
    except ImportError as error:
        raise ImportError("psis_khat needs ArviZ: pip install probattn[arviz]") from error
    return psislw
