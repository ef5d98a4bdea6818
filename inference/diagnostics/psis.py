"""Pareto-smoothed importance sampling (PSIS) diagnostic k̂ of a guide."""

from dataclasses import dataclass

import pyro.poutine as poutine
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.distributions import Distribution

from probattn.distributions import MarginalsOfJoint
from probattn.guides import global_sites
from probattn.inference.batches import unpack_batch
from probattn.inference.imports import extra
from probattn.inference.objective.coverage import check_coverage, guided_by
from probattn.inference.posterior.frozen import check_unit_scales, frozen, prepare
from probattn.site_info import info_of, mark
from probattn.threads import one_thread_at_a_time

KHAT_THRESHOLD = 0.7
"""Below it, importance sampling can correct the guide; above, the guide is too far away (Yao et
al., 2018)."""


@dataclass(frozen=True, eq=False)
class PSIS:
    """Pareto-smoothed importance weights of a guide's draws; ``print`` displays a summary.

    Args:
        khat: shape of the Pareto tail.
        log_weights: log p(latents, y) − log q(latents) of each draw, in nats, not normalised,
            ``(draws,)``.
        smoothed: log weights after smoothing, normalised so that the weights sum to 1,
            ``(draws,)``.
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


@one_thread_at_a_time
def psis_khat(
    model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...], *, num_samples: int = 1000
) -> PSIS:
    """Compute Pareto k̂ of the importance ratios between posterior and guide (Yao et al., 2018,
    Algorithm 1).

    One joint diagnostic of all latent sites, local ones included; it is stricter for more scalars.
    The posterior is the model's log joint, penalties included, up to normalisation.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` of the batch's
            size.
        guide: its fitted guide.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.
        num_samples: number of draws, at least 1000.

    Raises:
        MissingExtraError: arviz-stats is not installed.
        ValueError: equal ratios, of a point mass, which has no density, or of the posterior itself;
            scaled sites (see :func:`~probattn.inference.posterior.frozen.check_unit_scales`).
    """
    with extra("arviz", needed_by="psis_khat"):
        from arviz_stats.base import array_stats
    batch = unpack_batch(batch).arguments()
    prepare(model, guide, [batch])
    check_unit_scales(model, batch)
    with frozen(model), torch.no_grad():
        draws = [_log_weight(model, guide, batch) for _ in range(num_samples)]
    log_weights = torch.stack(draws).cpu()
    rounding = torch.finfo(log_weights.dtype).eps ** 0.5 * log_weights.abs().max()
    if log_weights.max() - log_weights.min() <= rounding:
        raise ValueError(
            "all importance ratios are equal: this guide is a point mass, or the posterior itself"
        )
    log_weights = log_weights.double()
    # Its argument is a log likelihood: weights 1 / p.
    smoothed, khat = array_stats.psislw(-log_weights.numpy())
    return PSIS(float(khat), log_weights, torch.as_tensor(smoothed))


def _log_weight(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    with _LocalPosteriors() as local:
        guided = poutine.trace(global_sites(guide)).get_trace(*batch)
        replayed = poutine.replay(guided_by(guided)(model), trace=guided)
        joint = poutine.trace(replayed).get_trace(*batch)
    for name, law in local.laws.items():
        guided.add_node(name, **joint.nodes[name] | {"fn": law})
    check_coverage(joint, guided)
    return torch.as_tensor(joint.log_prob_sum() - guided.log_prob_sum())


class _LocalPosteriors(Messenger):
    """Handler that draws local sites from the posteriors that they carry, and keeps these."""

    def __init__(self) -> None:
        super().__init__()
        self.laws: dict[str, Distribution] = {}

    def _pyro_sample(self, msg: Message) -> None:
        law = info_of(msg).posterior
        if law is not None and not msg["is_observed"] and msg["value"] is None:
            law = law.base_dist if isinstance(law, MarginalsOfJoint) else law
            self.laws[str(msg["name"])] = law
            msg["value"] = law.rsample()
            msg["done"] = True
            mark(msg, from_prior=True)  # the replay has no value
