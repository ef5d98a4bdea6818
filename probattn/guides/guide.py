"""Mean-field guides of global latent sites, with a module of a guide family for each."""

import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pyro
import pyro.poutine as poutine
from pyro.nn import PyroModule
from pyro.poutine.messenger import unwrap
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.families import Family, on_support, resolve
from probattn.guides.layer_sites import attention_layers, latent_sites, priors_at_sites, site_name
from probattn.handlers import (
    Handler,
    global_sites_only,
    guided_local_sites,
    has_data_plate,
    is_latent,
    outside_data_plate,
)
from probattn.param_effects import SkipParamEffects
from probattn.programs import Program
from probattn.pyro_compat import HANDLER_STACK


class Guide(SkipParamEffects, PyroModule):
    """Mean-field guide over global sites: each has a module of its family, at the site's path inside the guide.

    Built by :func:`for_model`. It holds the model without registering it, to read the priors' current scale. Local
    sites that carry their posterior are sampled from it: in the model's own pass under the ELBOs of
    :mod:`probattn.inference`, in an additional run of the model elsewhere (:class:`pyro.infer.Trace_ELBO`,
    :class:`pyro.infer.Predictive`).

    Attributes:
        sites: names of the sites that have a module here.
        rest: the guide of all other global sites, or None.
    """

    def __init__(self, model: Program, families: Mapping[str, Family], *, rest: Callable | None = None) -> None:
        super().__init__()
        self._model = (model,)
        self._has_local_sites = True
        priors = dict(latent_sites(model, at=_PriorMedians()))
        self.sites = tuple(priors)
        for site, prior in priors.items():
            *containers, name = site.split(".")
            parent = self
            for container in containers:
                if container not in dict(parent.named_children()):
                    setattr(parent, container, PyroModule())
                parent = getattr(parent, container)
            setattr(parent, name, on_support(families[site], prior))
        self.rest = None
        if rest is not None:
            self.rest = rest(poutine.block(model, hide_fn=self._covers))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site; the arguments are the model's, which local sites and ``rest`` depend on."""
        values = {}
        for layer, path in attention_layers(self._model[0]):
            without_parameters = poutine.block(hide_fn=lambda msg: msg["type"] == "param")  # the model's run has them
            with without_parameters, _GuidedHyperparameters(self) as guided:
                own = priors_at_sites(layer)
            values |= guided.values
            for name, prior in own.items():
                site = site_name(path, name)
                values[site] = pyro.sample(site, self.get_submodule(site)(prior))
        if self.rest is not None:
            values |= self.rest(*args, **kwargs) or {}
        in_model = any(isinstance(handler, global_sites_only) for handler in HANDLER_STACK)
        if self._has_local_sites and not in_model and _accepts(self._model[0], args, kwargs):
            values |= self._local(values, args, kwargs)
        return values

    def _local(self, values: Mapping[str, Tensor], args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Sample the local sites by a run of the model, in which they carry their posterior."""
        if has_data_plate():  # that of Predictive(parallel=True), whose draws would be taken for examples
            with poutine.block(), outside_data_plate(), poutine.trace() as traced:
                self._model[0](*args, **kwargs)
            local = [name for name, site in traced.trace.nodes.items() if "posterior" in site.get("infer", {})]
            if local:
                raise ValueError(
                    f"site {local[0]} belongs to single examples, and this guide runs in a plate at dimension -1: use "
                    "predict of probattn.inference, or Predictive(..., parallel=False)"
                )
            return {}
        with guided_local_sites() as guided:
            poutine.condition(self._model[0], data=values)(*args, **kwargs)
        self._has_local_sites = guided.has_met
        return guided.values

    def _covers(self, msg: Message) -> bool:
        return msg["name"] in self.sites or "posterior" in msg["infer"]


def for_model(
    model: Program,
    family: str | Family = "full",
    *,
    overrides: Mapping[str, str | Family] | None = None,
    rest: Callable[[Program], Program] | None = None,
) -> Guide:
    """Build a guide for every latent site of a model's attention layers, those of hierarchical priors included.

    >>> guide = guides.for_model(model, "full", rest=AutoNormal)  # doctest: +SKIP

    Args:
        model: a module that holds layers of this library (or is one), or a program that calls such modules.
        family: ``"full"``, ``"diagonal"``, ``"lowrank"``, ``"delta"`` or a callable ``prior -> module``. The named
            families accept sites of any continuous support, by a bijection from ℝ.
        overrides: families by pattern of site names (``"*.6.*"``); the last match counts.
        rest: builds a guide of the remaining global sites (Bayesian weights, your own sites), such as a class of
            Pyro's AutoGuides; it is called with the model in which the covered sites are hidden.

    Raises:
        ValueError: an unknown family, a family chosen for a model without a site for it, or a pattern that matches no
            site.
    """
    overrides = overrides or {}
    sites = [site for site, _ in latent_sites(model)]
    if len(set(sites)) < len(sites):
        raise ValueError(
            f"two layers of this program have sites of one name, {', '.join(sorted(set(sites)))}: make them attributes "
            "of one PyroModule, whose paths tell them apart"
        )
    if not sites and family != "full":
        raise ValueError(
            f"no site for a guide of family {family!r}: all latent sites of this model are local and carry their own "
            "posterior (or there are none)"
        )
    for pattern in overrides:
        if not any(fnmatchcase(site, pattern) for site in sites):
            raise ValueError(f"override {pattern!r} matches no latent site; sites: {', '.join(sites) or 'none'}")
    chosen = {site: resolve(family) for site in sites}
    for pattern, other in overrides.items():
        chosen.update({site: resolve(other) for site in sites if fnmatchcase(site, pattern)})
    return Guide(model, chosen, rest=rest)


def _accepts(model: Program, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    """Return True if the model can run on the arguments of a call of the guide; a call without data has none."""
    values = (*args, *kwargs.values())
    if values:
        return any(value is not None for value in values)
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else unwrap(model))
        signature.bind()
    except (TypeError, ValueError):
        return False
    return True


class _GuidedHyperparameters(Handler):
    """Handler that samples hyperparameters from a guide instead of from their priors."""

    def __init__(self, guide: Guide) -> None:
        super().__init__()
        self.guide, self.values = guide, {}

    def _pyro_sample(self, msg: Message) -> None:
        msg["fn"] = self.guide.get_submodule(msg["name"])(msg["fn"])

    def _pyro_post_sample(self, msg: Message) -> None:
        self.values[msg["name"]] = msg["value"]


class _PriorMedians(Handler):
    """Handler that sets latent sites to the median of their priors, at which guides are initialised."""

    def _pyro_sample(self, msg: Message) -> None:
        if is_latent(msg):
            msg["value"], msg["done"] = msg["fn"].sample((1001,)).median(0).values, True
