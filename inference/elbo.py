"""Pyro's ELBOs, in float32 or better under autocast, which tell the terms of their last value."""

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
from probattn.handlers import global_sites_only, local_posteriors
from probattn.param_effects import params_hidden_from_traces
from probattn.programs import Program, as_module, device, local_params
from probattn.pyro_compat import TracePairs


class ELBOModule(pyro.infer.elbo.ELBOModule):
    """An ELBO of a model and its guide as a module, whose parameters stay out of Pyro's global store.

    Made by calling an ELBO of this module. Functions and wrapped models become modules; parameters of function guides
    and of AutoGuides exist behind the first call, ``elbo(x, y)``.

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
            RuntimeError: a function or an AutoGuide that has not run yet, whose parameters an optimiser would miss.
        """
        if guides.is_lazy(self):
            raise RuntimeError(
                "parameters of functions and AutoGuides exist behind the first run: call elbo(x, y) once before the "
                "optimiser is built"
            )
        return super().named_parameters(*args, **kwargs)


class _ELBOWithTerms(TracePairs):
    """Runs the guide, log densities and KL outside autocast, and keeps the last traces and the terms of the last loss.

    Attributes:
        traces: of model and guide in the last loss.
        parts: its terms, as :meth:`terms` gives them, as tensors on the device, without gradient.
    """

    traces: tuple[Trace, Trace] | None = None
    parts: dict[str, Tensor] = {}
    _covered: tuple | None = None

    def __call__(self, model: Program, guide: Program) -> ELBOModule:
        """Return the loss as a module (see :class:`ELBOModule`)."""
        return ELBOModule(model, guide, self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"traces": None, "parts": {}}

    def differentiable_loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> Tensor:
        """Return −ELBO in nats, differentiable.

        Raises:
            ValueError: a guide that does not cover the model's latent sites (see :func:`check_coverage`).
        """
        device_type = (device(model, guide) or torch.device("cpu")).type
        within = same_autocast(model, device_type)
        loss, self.parts = 0.0, {}
        scoped = local_params(model, guide) if pyro.settings.get("module_local_params") else nullcontext()
        with torch.autocast(device_type, enabled=False), params_hidden_from_traces(), scoped:
            for traces in self.trace_pairs(within, guide, args, kwargs):
                parts = {name: value / self.num_particles for name, value in self._terms(*traces).items()}
                loss = loss + self._loss(parts, *traces)
                for name, value in parts.items():
                    self.parts[name] = self.parts.get(name, 0.0) + value.detach()
        return loss

    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Return −ELBO in nats."""
        with torch.no_grad():
            return self.differentiable_loss(model, guide, *args, **kwargs).item()

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Return −ELBO in nats and add its gradient to the parameters', as :class:`pyro.infer.SVI` asks."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def trace_pair(self, model: Program, guide: Program, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        one_pass = _SinglePassTrace(model, guide, settled=self._skips_log_prob, check=self._check)
        self.traces = super().trace_pair(model, one_pass, args, kwargs)
        return self.traces

    def _check(self, model_trace: Trace, guide_trace: Trace) -> None:
        """Checks the coverage of each pair of site lists once."""
        names = (*model_trace.nodes, None, *guide_trace.nodes)
        if names != self._covered:
            check_coverage(model_trace, guide_trace)
            self._covered = names

    def terms(self) -> dict[str, float]:
        """The terms of the last loss, in nats of the whole data set, which sum to it.

        ``nll`` is −E log p of all observed sites, ``kl/SITE`` the KL of a latent site, ``penalty/SITE`` minus a factor.
        A site that is drawn from its prior by design has no row: its KL is 0.
        """
        return {name: value.item() for name, value in self.parts.items()}

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

    def _loss(self, parts: dict[str, Tensor], model_trace: Trace, guide_trace: Trace) -> Tensor:
        return sum(parts.values())

    @staticmethod
    def _skips_log_prob(model_site: dict, guide_site: dict) -> bool:
        """Whether the densities of a site need not be computed."""
        return _has_prior_as_posterior(model_site)


class _SinglePassTrace(Messenger):
    """Guide and model run once, as Pyro's ELBOs ask it of a guide that is a messenger.

    Local sites that carry their posterior are drawn from it in the model's pass and join the guide's trace, whose sites
    come in the model's order: that of their dependence.
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        *,
        settled: Callable[[dict, dict], bool],
        check: Callable[[Trace, Trace], None],
    ) -> None:
        super().__init__()
        self.model, self.guide, self.settled, self.check = model, guide, settled, check

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
                self.guide_trace.remove_node(name)  # by pyro.condition: its posterior is of no concern
            else:
                self.guide_trace.nodes.move_to_end(name)
                self._settle(site, self.guide_trace.nodes[name])

    def _settle(self, site: dict, guided: dict) -> None:
        if "weight" in site["infer"] and "weight" not in guided["infer"]:
            guided["scale"] = site["scale"]  # the layer's weight of this site's KL
        if self.settled(site, guided):
            _leave_out(site)
            _leave_out(guided)

    def get_traces(self) -> tuple[Trace, Trace]:
        return self.model_trace, self.guide_trace


class Trace_ELBO(_ELBOWithTerms, pyro.infer.Trace_ELBO):  # noqa: N801 - Pyro's name
    """The ELBO with every log density taken at the draws, :class:`pyro.infer.Trace_ELBO`."""

    def _loss(self, parts: dict[str, Tensor], model_trace: Trace, guide_trace: Trace) -> Tensor:
        loss = super()._loss(parts, model_trace, guide_trace)
        if all(is_identically_zero(site["score_parts"].score_function) for _, site in _sample_sites(guide_trace)):
            return loss
        surrogate = self.surrogate_loss(model_trace, guide_trace) / self.num_particles
        return surrogate + (loss - surrogate).detach()


class TraceMeanField_ELBO(_ELBOWithTerms, pyro.infer.TraceMeanField_ELBO):  # noqa: N801
    """The ELBO with the KL in closed form where there is one, :class:`pyro.infer.TraceMeanField_ELBO`."""

    @staticmethod
    def _skips_log_prob(model_site: dict, guide_site: dict) -> bool:
        if _ELBOWithTerms._skips_log_prob(model_site, guide_site):
            return True
        if _is_mapped_point(guide_site["fn"]):
            return False
        try:
            kl = kl_divergence(guide_site["fn"], model_site["fn"])
        except NotImplementedError:
            return False
        model_site["kl"] = scale_and_mask(kl, guide_site["scale"], guide_site["mask"]).sum()
        return True

    def _loss(self, parts: dict[str, Tensor], model_trace: Trace, guide_trace: Trace) -> Tensor:
        rigid = [name for name, site in _sample_sites(guide_trace) if not site["fn"].has_rsample]
        if rigid:
            raise NotImplementedError(f"no gradient reaches the guide through {', '.join(rigid)}: use Trace_ELBO")
        return super()._loss(parts, model_trace, guide_trace)


ELBOS = {"trace": Trace_ELBO, "mean_field": TraceMeanField_ELBO}


def same_autocast(program: Callable, device_type: str) -> Callable:
    """The program under the autocast state of now, wherever it is run later."""
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)

    @functools.wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype, enabled=enabled):
            return program(*args, **kwargs)

    return run


def _leave_out(site: dict) -> None:
    """Gives a site the log density 0, which saves computing it."""
    zeros = site["value"].new_zeros(site["fn"].batch_shape)
    site |= {"unscaled_log_prob": zeros, "log_prob": zeros, "log_prob_sum": zeros.sum()}
    site["score_parts"] = ScoreParts(zeros, 0, zeros)


def _has_prior_as_posterior(site: dict) -> bool:
    prior = getattr(site["fn"], "base_dist", site["fn"])
    return prior is site["infer"].get("posterior")


def _is_mapped_point(fn: pyro.distributions.TorchDistribution) -> bool:
    """True for a point that carries a log density, whose KL Pyro computes without it (AutoGuides of flows, MAP)."""
    while isinstance(fn, Independent | ExpandedDistribution):
        fn = fn.base_dist
    return (
        isinstance(fn, pyro.distributions.Delta)
        and not isinstance(fn, families.PointMass)
        and not is_identically_zero(fn.log_density)
    )


def _sample_sites(trace: Trace) -> Iterator[tuple[str, dict]]:
    return ((name, site) for name, site in trace.nodes.items() if site["type"] == "sample")
