"""Pyro's ELBOs as a loss: local sites from the posteriors they carry, float32 under autocast, terms by name."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.distributions import kl_divergence

from probattn.families import PointMass
from probattn.functional import dtypes
from probattn.guides import Guide
from probattn.inference.coverage import CoverageError, check_coverage, guided_by
from probattn.inference.guide_checks import check_local
from probattn.inference.non_finite import root_error
from probattn.local_sites import local_posteriors
from probattn.messages import is_amortised

ELBOS: dict[str, Callable[..., ELBO]] = {"mean_field": TraceMeanField_ELBO, "trace": Trace_ELBO, "enum": TraceEnum_ELBO}


class ELBOLoss(nn.Module):
    """−ELBO of a model and its guide in nats, differentiable; ``loss(x, y)`` takes the model's arguments.

    The guide, log densities, factors and KL are computed outside autocast; the model runs under the present one. The
    guide must cover the model's latent sites in each call (see :func:`~probattn.inference.coverage.check_coverage`).

    Args:
        model, guide: modules; for functions, and modules under handlers, use Pyro's own ELBOs.
        elbo: one of Pyro's; ``TraceMeanField_ELBO()`` by default, with the KL in closed form where there is one.

    Attributes:
        pairs: traces of model and guide in the last call, for each particle.
    """

    def __init__(self, model: nn.Module, guide: nn.Module, elbo: ELBO | None = None) -> None:
        super().__init__()
        self.pairs: list[tuple[Trace, Trace]] = []
        self._covered: set[tuple] = set()
        self.elbo = elbo or TraceMeanField_ELBO()
        self.add_module("model", model)
        self.add_module("guide", guide)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return −ELBO.

        Raises:
            ValueError: a guide that does not cover the model's latent sites; an AutoGuide of local sites.
            NotImplementedError: a site without reparametrised gradients under ``TraceMeanField_ELBO``.
        """
        device_type = next(self.parameters(), torch.empty(0)).device.type
        is_exact = not torch.is_autocast_enabled(device_type) and dtypes.matmul_precision() == "highest"
        run_model = self.model if is_exact else _under_current_autocast(self.model, device_type)
        guided: list[Trace] = []
        self.pairs = []

        def guide(*args: Any, **kwargs: Any) -> Any:
            with poutine.trace() as run, _WithDensity():
                result = self.guide(*args, **kwargs)
            guided.append(run.trace)
            return result

        def model(*args: Any, **kwargs: Any) -> Any:
            guide_trace = guided[-1]
            # The library's guide alone has no plates and no local sites that a replay could get wrong.
            is_own = isinstance(self.guide, Guide) and self.guide.rest is None
            checked = nullcontext() if is_own else guided_by(guide_trace)
            with poutine.trace() as run, checked, local_posteriors(guided=guide_trace.nodes):
                result = run_model(*args, **kwargs)
            self.pairs.append((run.trace, guide_trace))
            signature = _signature(run.trace), _signature(guide_trace)
            if signature not in self._covered:
                check_local(self.guide)
                check_coverage(run.trace, guide_trace)
                self._covered.add(signature)
            return result

        with ExitStack() as exact:
            exact.enter_context(nullcontext() if is_exact else dtypes.exact(device_type))
            exact.enter_context(pyro.get_param_store().scope())
            try:
                return self.elbo.differentiable_loss(model, guide, *args, **kwargs)
            except CoverageError as error:
                raise root_error(error) from None  # to which Pyro adds the shapes of all sites

    @torch.no_grad()
    def terms(self) -> dict[str, Tensor]:
        """Return the terms of the last loss, which sum to it, in nats of the whole data set.

        ``nll`` is −E log p of all observed sites, ``kl/SITE`` the KL of a latent site, ``penalty/SITE`` the negative
        log of a factor. A site that is drawn from its prior by design has no term: its KL is 0.
        """
        terms: dict[str, Tensor] = {}
        for pair in self.pairs:
            for name, value in self._terms(*pair).items():
                terms[name] = terms.get(name, 0.0) + value / len(self.pairs)
        return terms

    def _terms(self, model_trace: Trace, guide_trace: Trace) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        for name, site in _sample_sites(model_trace):
            if is_amortised(site):
                continue
            if site["is_observed"]:
                is_factor, of = site["infer"].get("is_auxiliary"), site["infer"].get("kl_of")
                key = f"kl/{of}" if of else f"penalty/{name}" if is_factor else "nll"
                terms[key] = terms.get(key, 0.0) - _log_prob_sum(site)
            elif name in guide_trace:
                terms[f"kl/{name}"] = self._kl(guide_trace.nodes[name], site)
        for name, site in _sample_sites(guide_trace):
            if name not in model_trace:
                terms[f"kl/{name}"] = _log_prob_sum(site)
        return terms

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Traces of model and guide of the last particle; none before the first call."""
        return self.pairs[-1] if self.pairs else ()

    def _kl(self, guide_site: dict, model_site: dict) -> Tensor:
        if isinstance(self.elbo, TraceMeanField_ELBO):
            try:
                kl = kl_divergence(guide_site["fn"], model_site["fn"])
                return scale_and_mask(kl, guide_site["scale"], guide_site["mask"]).sum()
            except NotImplementedError:
                pass
        return _log_prob_sum(guide_site) - _log_prob_sum(model_site)


class _WithDensity(Messenger):
    """Give point masses with a density (AutoGuides with flows) a KL that counts it, as Pyro's closed form does not."""

    def _pyro_sample(self, msg: Message) -> None:
        fn = msg["fn"]
        if type(fn) is dist.Delta and not is_identically_zero(fn.log_density):
            msg["fn"] = PointMass(fn.v, log_density=fn.log_density, event_dim=fn.event_dim)


def _signature(trace: Trace) -> tuple:
    """Return what the coverage check depends on: sites, their shapes, plates and scales."""
    key: list[Any] = []
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and hasattr(site["fn"], "event_shape"):
            scale = site["scale"] if isinstance(site["scale"], int | float) else id(site["scale"])
            key.append((name, site["is_observed"], site["fn"].event_shape, site["cond_indep_stack"], scale))
    return tuple(key)


def _under_current_autocast(program: Callable, device_type: str) -> Callable:
    """Wrap a program so that it runs under the present autocast state and precision of float32 products."""
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    precision = dtypes.matmul_precision()

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype, enabled=enabled), dtypes.float32_products(precision):
            return program(*args, **kwargs)

    return run


def _log_prob_sum(site: dict) -> Tensor:
    log_prob = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
    return scale_and_mask(log_prob, site["scale"], site["mask"]).sum()


def _sample_sites(trace: Trace) -> Iterator[tuple[str, dict]]:
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and type(site["fn"]).__name__ != "_Subsample":
            yield name, site
