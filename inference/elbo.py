"""Pyro's ELBOs, computed in float32 or better under autocast, with the terms of their last value."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.infer
import pyro.poutine as poutine
import torch
from pyro.distributions.score_parts import ScoreParts
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer.autoguide import AutoGuide
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import Independent, kl_divergence

from probattn import families, guides
from probattn.coverage import check_coverage, checked_replay
from probattn.functional import dtypes
from probattn.handlers import exclusive, global_sites_only, local_posteriors
from probattn.param_effects import params_hidden_from_traces
from probattn.programs import Program, as_module, device, local_params
from probattn.pyro_compat import TracePairs


class ELBOModule(pyro.infer.elbo.ELBOModule):
    """ELBO of a model and its guide as a module, whose parameters stay out of Pyro's global store.

    Created by calling :class:`Trace_ELBO` or :class:`TraceMeanField_ELBO`. Functions and wrapped models become modules;
    parameters of function guides and of AutoGuides exist after the first call, ``elbo(x, y)``.

    Args:
        model, guide: programs.
        elbo: an ELBO.
    """

    def __init__(self, model: Program, guide: Program, elbo: pyro.infer.ELBO) -> None:
        super().__init__(as_module(model), as_module(guide), elbo)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the differentiable loss, −ELBO, in nats."""
        with local_params(self.model, self.guide):
            return self.elbo.differentiable_loss(self.model, self.guide, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield all parameters by name.

        Raises:
            RuntimeError: a function or an AutoGuide has not run yet, and an optimiser would miss its parameters.
        """
        if guides.is_lazy(self):
            raise RuntimeError(
                "parameters of functions and AutoGuides exist after the first run: call elbo(x, y) once before you "
                "build the optimiser"
            )
        return super().named_parameters(*args, **kwargs)


class _ELBOWithTerms(TracePairs):
    """Mixin that runs guide, log densities and KL outside autocast, and keeps traces and terms of the last loss.

    Attributes:
        traces: traces of model and guide in the last loss.
        term_tensors: terms of the last loss as in :meth:`terms`, as detached tensors on the device.
    """

    traces: tuple[Trace, Trace] | None = None
    term_tensors: dict[str, Tensor] = {}
    _covered: tuple | None = None

    def __call__(self, model: Program, guide: Program) -> ELBOModule:
        """Return the loss as a module (see :class:`ELBOModule`)."""
        return ELBOModule(model, guide, self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"traces": None, "term_tensors": {}}

    def differentiable_loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> Tensor:
        """Return −ELBO in nats, differentiable.

        Raises:
            ValueError: a guide that does not cover the model's latent sites (see :func:`check_coverage`).
        """
        device_type = (device(model, guide) or torch.device("cpu")).type
        model_in_autocast = with_current_autocast(model, device_type)
        losses: list[Tensor] = []
        self.term_tensors = {}
        scoped = local_params(model, guide) if pyro.settings.get("module_local_params") else exclusive()
        precise = dtypes.float32_products("highest")
        with scoped, torch.autocast(device_type, enabled=False), precise, params_hidden_from_traces():
            for traces in self.trace_pairs(model_in_autocast, guide, args, kwargs):
                terms = self._terms(*traces)
                if self.num_particles > 1:  # a kernel for each term otherwise
                    terms = {name: value / self.num_particles for name, value in terms.items()}
                losses.append(self._loss(terms, *traces))
                for name, value in terms.items():
                    earlier = self.term_tensors.get(name)
                    self.term_tensors[name] = value.detach() if earlier is None else earlier + value.detach()
        return sum(losses[1:], losses[0])

    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Return −ELBO in nats."""
        with torch.no_grad():
            return self.differentiable_loss(model, guide, *args, **kwargs).item()

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Return −ELBO in nats and accumulate its gradient, as :class:`pyro.infer.SVI` requires."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def trace_pair(self, model: Program, guide: Program, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        single_pass = _SinglePassTrace(model, guide, skips_log_prob=self._skips_log_prob, check=self._check)
        self.traces = super().trace_pair(model, single_pass, args, kwargs)
        return self.traces

    def _check(self, model_trace: Trace, guide_trace: Trace) -> None:
        """Check the coverage of each pair of site lists once."""
        names = (*model_trace.nodes, None, *guide_trace.nodes)
        if names != self._covered:
            check_coverage(model_trace, guide_trace)
            self._covered = names

    def terms(self) -> dict[str, float]:
        """Return the terms of the last loss, which sum to it, in nats of the whole data set.

        ``nll`` is −E log p of all observed sites, ``kl/SITE`` the KL of a latent site, ``penalty/SITE`` the negative
        log of a factor. A site that is drawn from its prior by design has no term: its KL is 0.
        """
        return {name: value.item() for name, value in self.term_tensors.items()}

    def _terms(self, model_trace: Trace, guide_trace: Trace) -> dict[str, Tensor]:
        terms = {}
        for name, site in _sample_sites(model_trace):
            if site["is_observed"]:
                key = f"penalty/{name}" if site["infer"].get("is_auxiliary") else "nll"
                terms[key] = terms.get(key, 0.0) - site["log_prob_sum"]
            elif "kl" in site:
                terms[f"kl/{name}"] = site["kl"]
            elif not _has_prior_as_posterior(site):
                terms[f"kl/{name}"] = guide_trace.nodes[name]["log_prob_sum"] - site["log_prob_sum"]
        for name, site in _sample_sites(guide_trace):
            if name not in model_trace.nodes:
                terms[f"kl/{name}"] = site["log_prob_sum"]
        return terms

    def _loss(self, terms: dict[str, Tensor], model_trace: Trace, guide_trace: Trace) -> Tensor:
        return sum(terms.values())

    @staticmethod
    def _skips_log_prob(model_site: dict, guide_site: dict) -> bool:
        """Return True if the log densities of a site need not be computed."""
        return _has_prior_as_posterior(model_site)


class _SinglePassTrace(Messenger):
    """Runs guide and model once and returns both traces, through Pyro's interface for guides that are messengers.

    Local sites that carry their posterior are drawn from it in the model's pass and added to the guide's trace, whose
    sites are in the model's order, in which they depend on each other.
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        *,
        skips_log_prob: Callable[[dict, dict], bool],
        check: Callable[[Trace, Trace], None],
    ) -> None:
        super().__init__()
        self.model, self.guide, self.skips_log_prob, self.check = model, guide, skips_log_prob, check

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        with global_sites_only():
            self.guide_trace = poutine.trace(self.guide).get_trace(*args, **kwargs)
        if isinstance(self.guide, AutoGuide):
            guides.check_global(self.guide)
        with local_posteriors(self.guide_trace):
            replayed = checked_replay(self.guide_trace)(self.model)
            self.model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        self.check(self.model_trace, self.guide_trace)
        for name, site in self.model_trace.nodes.items():
            if name not in self.guide_trace.nodes:
                continue
            if site["type"] != "sample":
                self.guide_trace.nodes.move_to_end(name)
            elif site["is_observed"]:
                self.guide_trace.remove_node(name)  # by pyro.condition, so that it has no posterior
            else:
                self.guide_trace.nodes.move_to_end(name)
                self._pair(site, self.guide_trace.nodes[name])

    def _pair(self, model_site: dict, guide_site: dict) -> None:
        """Give both sites the same KL weight, and skip their log densities where possible."""
        if "weight" in model_site["infer"] and "weight" not in guide_site["infer"]:
            guide_site["scale"] = model_site["scale"]  # the layer's weight of this site's KL
        if self.skips_log_prob(model_site, guide_site):
            _set_zero_log_prob(model_site)
            _set_zero_log_prob(guide_site)

    def get_traces(self) -> tuple[Trace, Trace]:
        return self.model_trace, self.guide_trace


class Trace_ELBO(_ELBOWithTerms, pyro.infer.Trace_ELBO):  # noqa: N801 - Pyro's name
    """ELBO with every log density evaluated at the samples, like :class:`pyro.infer.Trace_ELBO`."""

    def _loss(self, terms: dict[str, Tensor], model_trace: Trace, guide_trace: Trace) -> Tensor:
        loss = super()._loss(terms, model_trace, guide_trace)
        if all(is_identically_zero(site["score_parts"].score_function) for _, site in _sample_sites(guide_trace)):
            return loss
        surrogate = self.surrogate_loss(model_trace, guide_trace) / self.num_particles
        return surrogate + (loss - surrogate).detach()


class TraceMeanField_ELBO(_ELBOWithTerms, pyro.infer.TraceMeanField_ELBO):  # noqa: N801
    """ELBO with the KL in closed form where there is one, like :class:`pyro.infer.TraceMeanField_ELBO`."""

    @staticmethod
    def _skips_log_prob(model_site: dict, guide_site: dict) -> bool:
        if _ELBOWithTerms._skips_log_prob(model_site, guide_site):
            return True
        if _is_transformed_delta(guide_site["fn"]):
            return False
        try:
            kl = kl_divergence(guide_site["fn"], model_site["fn"])
        except NotImplementedError:
            return False
        model_site["kl"] = scale_and_mask(kl, guide_site["scale"], guide_site["mask"]).sum()
        return True

    def _loss(self, terms: dict[str, Tensor], model_trace: Trace, guide_trace: Trace) -> Tensor:
        non_reparametrised = [name for name, site in _sample_sites(guide_trace) if not site["fn"].has_rsample]
        if non_reparametrised:
            names = ", ".join(non_reparametrised)
            raise NotImplementedError(f"no gradient reaches the guide through {names}: use Trace_ELBO")
        return super()._loss(terms, model_trace, guide_trace)


ELBOS = {"trace": Trace_ELBO, "mean_field": TraceMeanField_ELBO}


def with_current_autocast(program: Callable, device_type: str) -> Callable:
    """Wrap a program so that it always runs under the present autocast state and precision of float32 products."""
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    precision = dtypes.matmul_precision()

    @functools.wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype, enabled=enabled), dtypes.float32_products(precision):
            return program(*args, **kwargs)

    return run


def _set_zero_log_prob(site: dict) -> None:
    """Set the log density of a site to 0, so that Pyro does not compute it."""
    zero = site["value"].new_zeros(())
    zeros = zero.expand(site["fn"].batch_shape)
    site |= {"unscaled_log_prob": zeros, "log_prob": zeros, "log_prob_sum": zero}
    site["score_parts"] = ScoreParts(zeros, 0, zeros)


def _has_prior_as_posterior(site: dict) -> bool:
    prior = site["fn"].base_dist if isinstance(site["fn"], ExpandedDistribution) else site["fn"]
    return prior is site["infer"].get("posterior")


def _is_transformed_delta(fn: pyro.distributions.TorchDistribution) -> bool:
    """Return True for a Delta with a log density, which Pyro's closed-form KL ignores (AutoGuides with flows, MAP)."""
    while isinstance(fn, Independent | ExpandedDistribution):
        fn = fn.base_dist
    return (
        isinstance(fn, pyro.distributions.Delta)
        and not isinstance(fn, families.PointMass)
        and not is_identically_zero(fn.log_density)
    )


def _sample_sites(trace: Trace) -> Iterator[tuple[str, dict]]:
    return ((name, site) for name, site in trace.nodes.items() if site["type"] == "sample")
