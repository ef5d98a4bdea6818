"""Pyro's ELBOs as a loss: local sites from the posteriors they carry, float32 under autocast, terms
by name."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.distributions import kl_divergence

from probattn import local_posteriors
from probattn.distributions import PointMass
from probattn.functional import dtypes
from probattn.guides import global_sites
from probattn.inference.objective.coverage import check_coverage, guided_by
from probattn.inference.objective.guide_checks import check_local
from probattn.messages import is_auxiliary, law_of
from probattn.param_store import follow
from probattn.site_info import info_of
from probattn.threads import one_thread_at_a_time

ELBOS: dict[str, Callable[..., ELBO]] = {
    "mean_field": TraceMeanField_ELBO,
    "trace": Trace_ELBO,
    "enum": TraceEnum_ELBO,
}


class ELBOLoss(nn.Module):
    """−ELBO of a model and its guide in nats, differentiable; ``loss(x, y)`` takes the model's
    arguments.

    The guide, log densities, factors and KL are computed outside autocast; the model runs under the
    present one. The guide must cover the model's latent sites in each call (see
    :func:`~probattn.inference.objective.coverage.check_coverage`).

    Args:
        model, guide: modules; for functions, and modules under handlers, use Pyro's own ELBOs.
        elbo: one of Pyro's; ``TraceMeanField_ELBO()`` by default, with the KL in closed form where
            there is one.

    Attributes:
        pairs: traces of model and guide in the last call, for each particle.
    """

    model: nn.Module
    guide: nn.Module

    def __init__(self, model: nn.Module, guide: nn.Module, elbo: ELBO | None = None) -> None:
        super().__init__()
        self.pairs: list[tuple[Trace, Trace]] = []
        self.elbo = elbo or TraceMeanField_ELBO()
        self.add_module("model", model)  # an error for functions
        self.add_module("guide", guide)

    @one_thread_at_a_time
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return −ELBO.

        Raises:
            ValueError: a guide that does not cover the model's latent sites; an AutoGuide of local
                sites.
            NotImplementedError: a site without reparametrised gradients under
                ``TraceMeanField_ELBO``.
        """
        device_type = next(self.parameters(), torch.empty(0)).device.type
        autocast = torch.autocast(
            device_type,
            dtype=torch.get_autocast_dtype(device_type),
            enabled=torch.is_autocast_enabled(device_type),
        )
        precision = dtypes.matmul_precision()
        guided = Trace()
        self.pairs = []
        for module in (self.model, self.guide):
            follow(module)

        def guide(*args: Any, **kwargs: Any) -> Any:
            nonlocal guided
            with poutine.trace() as run, _WithDensity():
                result = global_sites(self.guide)(*args, **kwargs)
            guided = run.trace
            check_local(self.guide)
            return result

        def model(*args: Any, **kwargs: Any) -> Any:
            usual_precision = dtypes.float32_products(precision)
            with autocast, usual_precision, poutine.trace() as run, guided_by(guided):
                result = local_posteriors(self.model)(*args, **kwargs)
            self.pairs.append((run.trace, guided))
            check_coverage(run.trace, guided, enumerates=isinstance(self.elbo, TraceEnum_ELBO))
            return result

        with dtypes.exact(device_type), pyro.get_param_store().scope():
            # Pyro's base class lacks the method.
            loss = self.elbo.differentiable_loss  # type: ignore[attr-defined]
            return loss(model, guide, *args, **kwargs)

    @torch.no_grad()
    def terms(self) -> dict[str, Tensor]:
        """Return the terms of the last loss, which sum to it, in nats of the whole data set.

        ``nll`` is −E log p of all observed sites, ``kl/SITE`` the KL of a latent site,
        ``penalty/SITE`` the negative log of a factor. A site that is drawn from its prior by design
        has no term: its KL is 0.
        """
        terms: defaultdict[str, Any] = defaultdict(float)
        number = len(self.pairs)
        for of_model, of_guide in self.pairs:
            model_sites = _scored_sites(of_model)
            for name, site in model_sites.items():
                if site["is_observed"]:
                    terms[_term(name, site)] -= site["log_prob_sum"] / number
            for name, site in _scored_sites(of_guide).items():
                terms[f"kl/{name}"] += self._kl(site, model_sites.get(name)) / number
        return dict(terms)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Traces of model and guide of the last particle; none before the first call."""
        return self.pairs[-1] if self.pairs else ()

    def _kl(self, guide_site: Message, model_site: Message | None) -> Tensor:
        """Return the KL of a site, in closed form where the ELBO has it; of the guide's own, its
        log density."""
        if model_site is None:
            return guide_site["log_prob_sum"]
        if isinstance(self.elbo, TraceMeanField_ELBO):
            try:
                kl = kl_divergence(law_of(guide_site), law_of(model_site))
                return scale_and_mask(kl, guide_site["scale"], guide_site["mask"]).sum()
            except NotImplementedError:
                pass
        return guide_site["log_prob_sum"] - model_site["log_prob_sum"]


class _WithDensity(Messenger):
    """Give point masses with a density (AutoGuides with flows) a KL that counts it, as Pyro's
    closed form does not."""

    def _pyro_sample(self, msg: Message) -> None:
        fn = msg["fn"]
        if type(fn) is dist.Delta and not is_identically_zero(fn.log_density):
            msg["fn"] = PointMass(fn.v, log_density=fn.log_density, event_dim=fn.event_dim)


def _term(name: str, site: Message) -> str:
    """Return the name of the term that an observed site of the model belongs to."""
    latent = info_of(site).kl_of
    if latent:
        return f"kl/{latent}"
    return f"penalty/{name}" if is_auxiliary(site) else "nll"


def _scored_sites(trace: Trace) -> dict[str, Message]:
    """Return the sites of a trace with their log densities, but those that their posterior's KL
    stands for."""
    trace.compute_log_prob()
    scored = {}
    for name, site in trace.nodes.items():
        is_site = "log_prob_sum" in site and isinstance(site["fn"], TorchDistributionMixin)
        if is_site and not info_of(site).drawn:
            scored[name] = site
    return scored
