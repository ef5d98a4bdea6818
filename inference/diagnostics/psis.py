"""Pareto-smoothed importance sampling (PSIS) diagnostic k̂ of a guide."""

import math
from dataclasses import dataclass

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.distributions import Distribution

from probattn.distributions import MarginalsOfJoint
from probattn.draws import draws
from probattn.inference.batches import unpack_batch
from probattn.inference.coverage import check_coverage, guided_by
from probattn.inference.imports import extra
from probattn.inference.posterior.frozen import check_unit_scales, frozen, prepared
from probattn.messages import is_global_latent

KHAT_THRESHOLD = 0.7
"""Below it, importance sampling can correct the guide; above, the guide is too far away (Yao et al., 2018)."""
CHUNK_SIZE = 256
"""Examples times draws of a forward pass."""


@dataclass(frozen=True, eq=False)
class PSIS:
    """Pareto-smoothed importance weights of a guide's draws; ``print`` displays a summary.

    Args:
        khat: shape of the Pareto tail; −inf if all ratios are equal, when the guide is the posterior; inf if too few
            ratios are large enough to fit a tail.
        log_weights: log p(latents, y) − log q(latents) of each draw, in nats, not normalised, ``(draws,)``.
        smoothed: log weights after smoothing, normalised so that the weights sum to 1, ``(draws,)``.
    """

    khat: float
    log_weights: Tensor
    smoothed: Tensor

    @property
    def ess(self) -> float:
        """Effective sample size, 1 / Σ w² of the smoothed weights."""
        return (-(2 * self.smoothed).logsumexp(0)).exp().item()

    def __str__(self) -> str:
        size = f"effective sample size {self.ess:.0f} of {len(self.log_weights)} draws"
        return f"k̂ = {self.khat:.2f} (reliable below {KHAT_THRESHOLD}), {size}"


def psis_khat(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...], *, num_samples: int = 1000) -> PSIS:
    """Compute Pareto k̂ of the importance ratios between posterior and guide (Yao et al., 2018, Algorithm 1).

    One joint diagnostic of all latent sites, local ones included; it is stricter for more scalars. The posterior is
    that of :func:`~probattn.inference.nuts`, penalties included, up to normalisation.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` of the batch's size.
        guide: its fitted guide.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.
        num_samples: number of draws, at least 1000.

    Raises:
        MissingExtraError: arviz-stats is not installed.
        ValueError: a point-mass guide, which has no density; scaled sites (see
            :func:`~probattn.inference.posterior.frozen.check_unit_scales`).
    """
    with extra("arviz", needed_by="psis_khat"):
        from arviz_stats.base import array_stats
    batch = unpack_batch(batch).arguments()
    guide = prepared(model, guide, [batch])
    check_unit_scales(model, batch)
    pieces = torch.arange(num_samples).split(max(2, CHUNK_SIZE // len(batch[0])))
    with frozen(model), torch.no_grad():
        log_weights = torch.cat([_log_weights(model, guide, batch, len(piece)) for piece in pieces]).cpu()
    rounding = math.sqrt(torch.finfo(log_weights.dtype).eps) * (1 + log_weights.abs().max())
    log_weights = log_weights.double()
    if log_weights.max() - log_weights.min() <= rounding:
        return PSIS(-math.inf, log_weights, torch.full_like(log_weights, -math.log(num_samples)))
    try:
        smoothed, khat = array_stats.psislw(-log_weights.numpy())  # whose argument is a log likelihood: weights 1 / p
    except ValueError:  # fewer than five draws in the tail, or all of them equal
        return PSIS(math.inf, log_weights, log_weights.log_softmax(0))
    return PSIS(float(khat), log_weights, torch.as_tensor(smoothed))


def _log_weights(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...], number: int) -> Tensor:
    with _LocalPosteriors() as local, draws(number):
        guided = poutine.trace(guide).get_trace(*batch)
        joint = poutine.trace(poutine.replay(guided_by(guided)(model), trace=guided)).get_trace(*batch)
    for name, law in local.laws.items():
        guided.add_node(name, **joint.nodes[name] | {"fn": law})
    check_coverage(joint, guided)
    for name, site in guided.nodes.items():
        if is_global_latent(site) and number > 1 and torch.equal(site["value"][0], site["value"][1]):
            raise ValueError(f"this guide has a point mass at {name} and no density: importance ratios do not exist")
    return _log_density(joint, number) - _log_density(guided, number)


class _LocalPosteriors(Messenger):
    """Handler that draws local sites from the posteriors that they carry, and keeps these."""

    def __init__(self) -> None:
        super().__init__()
        self.laws: dict[str, Distribution] = {}

    def _pyro_sample(self, msg: Message) -> None:
        if "posterior" in msg["infer"] and not msg["is_observed"] and msg["value"] is None:
            law = msg["infer"]["posterior"]
            law = law.base_dist if isinstance(law, MarginalsOfJoint) else law
            shape = msg["fn"].batch_shape
            self.laws[msg["name"]] = law = law if law.batch_shape == shape else law.expand(shape)
            msg["value"], msg["done"], msg["infer"]["from_prior"] = law.rsample(), True, True  # the replay has no value


def _log_density(trace: Trace, number: int) -> Tensor:
    """Return the log density of each draw; ``draws`` has scaled sites with a draws dimension by 1/number."""
    trace.compute_log_prob()
    log_probs = [site["log_prob"] for site in trace.nodes.values() if site["type"] == "sample"]
    return sum(number * log_prob.sum(-1) if log_prob.dim() > 1 else log_prob.sum() for log_prob in log_probs)
