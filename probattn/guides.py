"""Guides of the latent sites of a model, built without data from a family for each site."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoCallable, AutoDelta, AutoGuide, AutoLaplaceApproximation
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger, unwrap
from pyro.poutine.runtime import _PYRO_STACK, Message
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.families import Family, on_support, resolve, stddev_of
from probattn.handlers import global_sites_only, guided_local_sites, has_data_plate, is_latent, outside_data_plate
from probattn.programs import FunctionModule, Program, local_params, modules
from probattn.quiet import Quiet


class Guide(Quiet, PyroModule):
    """Mean-field guide over global sites: each has a module of its family, at the site's path inside the guide.

    Built by :func:`for_model`. It holds the model without registering it, to read the priors' present scale. Sites of
    single examples that carry their posterior are drawn from it: in the model's own pass under the ELBOs of
    :mod:`probattn.inference`, in a pass of this guide's own elsewhere (:class:`pyro.infer.Trace_ELBO`,
    :class:`pyro.infer.Predictive`).

    Attributes:
        sites: names of the sites that have a module here.
        rest: the guide of all other global sites, or None.
    """

    def __init__(self, model: Program, families: Mapping[str, Family], *, rest: Callable | None = None) -> None:
        super().__init__()
        self._model = (model,)
        self._has_local_sites = True
        priors = dict(latent_sites(model, at=_Typical()))
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
            self.rest = rest(poutine.block(model, hide_fn=self._knows))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site; the arguments are the model's, which sites of single examples and ``rest`` depend on."""
        values = {}
        for layer, path in _layers(self._model[0]):
            without_parameters = poutine.block(hide_fn=lambda msg: msg["type"] == "param")  # the model's run has them
            with without_parameters, _Guided(self) as guided:
                own = _sites(layer)
            values |= guided.values
            for name, prior in own.items():
                site = f"{path}.{name}" if path else name
                values[site] = pyro.sample(site, self.get_submodule(site)(prior))
        if self.rest is not None:
            values |= self.rest(*args, **kwargs) or {}
        in_model = any(isinstance(handler, global_sites_only) for handler in _PYRO_STACK)
        if self._has_local_sites and not in_model and _takes(self._model[0], args, kwargs):
            values |= self._local(values, args, kwargs)
        return values

    def _local(self, values: Mapping[str, Tensor], args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Draw the sites of single examples by a run of the model, in which they carry their posterior."""
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

    def _knows(self, msg: Message) -> bool:
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
        family: ``"full"``, ``"diagonal"``, ``"lowrank"``, ``"delta"`` or a callable ``prior -> module``. The families
            by name take sites of any continuous support, by a bijection from ℝ.
        overrides: families by pattern of site names (``"*.6.*"``); the last that matches counts.
        rest: makes a guide of the remaining global sites (of Bayesian weights, of a user's own), such as a class of
            Pyro's AutoGuides; it is called with the model in which the known sites are hidden.

    Raises:
        ValueError: an unknown family, one chosen where there is no site for it, or a pattern that matches no site.
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
            f"no site for a guide of family {family!r}: all that this model draws belongs to one example and brings "
            "its own posterior (or it draws nothing)"
        )
    for pattern in overrides:
        if not any(fnmatchcase(site, pattern) for site in sites):
            raise ValueError(f"override {pattern!r} matches no latent site; sites: {', '.join(sites) or 'none'}")
    chosen = {site: resolve(family) for site in sites}
    for pattern, other in overrides.items():
        chosen.update({site: resolve(other) for site in sites if fnmatchcase(site, pattern)})
    return Guide(model, chosen, rest=rest)


def priors_of(model: Program) -> Program:
    """Return a program that draws the global sites of a model's layers from their priors, hyperparameters included."""

    def run(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        values = {}
        for layer, path in _layers(model):
            for name, prior in _sites(layer).items():
                site = f"{path}.{name}" if path else name
                values[site] = pyro.sample(site, prior)
        return values

    return run


def latent_sites(model: Program, *, at: Messenger | None = None) -> Iterator[tuple[str, dist.TorchDistribution]]:
    """Yield names and present priors of a model's global latent sites, hyperparameters before what depends on them.

    Args:
        model: as for :func:`for_model`.
        at: a handler that sets hyperparameters, which otherwise are drawn.

    Raises:
        ValueError: a layer whose sites would not be named by its path, since a container above it is a plain module;
            a prior with a batch shape.
    """
    for layer, path in _layers(model):
        with poutine.block(), at or nullcontext(), poutine.trace() as traced:
            own = _sites(layer)
        drawn = {name: node["fn"] for name, node in traced.trace.nodes.items() if node["type"] == "sample"}
        for site, prior in (*drawn.items(), *((f"{path}.{name}" if path else name, own[name]) for name in own)):
            if prior.batch_shape:
                dims = len(prior.batch_shape) + len(prior.event_shape)
                raise ValueError(
                    f"the prior of site {site} has batch shape {tuple(prior.batch_shape)}, which belongs to its event: "
                    f"end it with .to_event({dims - prior.event_dim})"
                )
            yield site, prior


def _layers(model: Program) -> Iterator[tuple[ProbabilisticAttention, str]]:
    """The attention layers of a program with their paths."""
    for module in modules(model.function if isinstance(model, FunctionModule) else model):
        root = getattr(module, "_pyro_name", "")
        for below, layer in module.named_modules():
            if not isinstance(layer, ProbabilisticAttention):
                continue
            path = ".".join(name for name in (root, below) if name)
            if layer._pyro_name != path:
                raise ValueError(
                    f"the sites of the layer at {path!r} would be called {layer._pyro_name!r}: a module above it is no "
                    "PyroModule. Build containers as PyroModule[nn.Sequential](...), or call "
                    "pyro.nn.module.to_pyro_module_(network) once; compile parts by module.compile(), which keeps names"
                )
            yield layer, path


def _sites(layer: ProbabilisticAttention) -> dict[str, dist.TorchDistribution]:
    """The layer's sites with their priors, whose hyperparameters are drawn at sites with full names."""
    with layer._pyro_context:
        return layer.sites()


def _takes(model: Program, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    """True if a call of the guide with these arguments is one that the model could take; without data it is not."""
    values = (*args, *kwargs.values())
    if values:
        return any(value is not None for value in values)
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else unwrap(model))
        signature.bind()
    except (TypeError, ValueError):
        return False
    return True


class _Guided(Messenger):
    """Draws the hyperparameters of priors from a guide instead."""

    def __init__(self, guide: Guide) -> None:
        super().__init__()
        self.guide, self.values = guide, {}

    def _pyro_sample(self, msg: Message) -> None:
        msg["fn"] = self.guide.get_submodule(msg["name"])(msg["fn"])

    def _pyro_post_sample(self, msg: Message) -> None:
        self.values[msg["name"]] = msg["value"]


class _Typical(Messenger):
    """Puts latent sites at the median of their priors, from which guides start."""

    def _pyro_sample(self, msg: Message) -> None:
        if is_latent(msg):
            msg["value"], msg["done"] = msg["fn"].sample((1001,)).median(0).values, True


def is_lazy(guide: nn.Module) -> bool:
    """Return True for guides whose parameters appear in their first run: AutoGuides and functions."""
    return lacks_prototype(guide) or any(
        isinstance(part, FunctionModule) and not part.has_run for part in guide.modules()
    )


def lacks_prototype(guide: Program) -> bool:
    """Return True for a guide that is or holds an AutoGuide which has not run yet."""
    parts = (part for module in modules(guide) for part in module.modules())
    return any(
        isinstance(part, AutoGuide) and not isinstance(part, AutoCallable) and part.prototype_trace is None
        for part in parts
    )


def materialise(guide: nn.Module, batch: tuple) -> None:
    """Create the parameters of an AutoGuide or a function by one run, before an optimiser or a checkpoint needs them.

    Guides of this library have theirs from construction; for them this does nothing.

    Args:
        guide: any guide, a function as :func:`probattn.programs.as_module` wraps it.
        batch: the arguments of the model, ``(x, y)`` or ``(x, y, mask)``.
    """
    if is_lazy(guide):
        with torch.no_grad(), local_params(guide):
            guide(*batch)
        check_global(guide)


def global_part(model: Program) -> Program:
    """Return the model without the local sites that carry their own posterior: what an AutoGuide is built on.

    >>> guide = AutoNormal(guides.global_part(model))  # doctest: +SKIP
    """
    return poutine.block(model, hide_fn=lambda msg: "posterior" in msg["infer"])


def check(model: Program, guide: nn.Module) -> None:
    """Refuse a guide of another model, Pyro's point masses on u where Λ is learned, and AutoGuides of local sites.

    Raises:
        ValueError: naming the site and what to use.
    """
    check_global(guide)
    known = {id(part) for module in modules(model) for part in module.modules()}
    for part in guide.modules():
        if isinstance(part, Guide) and any(id(held) not in known for held in modules(part._model[0])):
            raise ValueError(
                "this guide was built for another model, whose priors it would follow: build it with "
                "guides.for_model(model), and copy the two together, copy.deepcopy((model, guide))"
            )
    if any(isinstance(part, (AutoDelta, AutoLaplaceApproximation)) for part in guide.modules()):
        for site, prior in latent_sites(model):
            if stddev_of(prior).requires_grad:
                raise ValueError(
                    f"this guide is a point mass on {site} itself, whose density grows without bound as the learned Λ "
                    'runs to 0: build the layer with learn_scale=False, or use guides.for_model(model, "delta")'
                )


def check_global(guide: nn.Module) -> None:
    """Refuse AutoGuides that also guide sites of one example, whose layers have their posteriors.

    Raises:
        ValueError: naming the site and what to build the guide on.
    """
    for part in guide.modules():
        if isinstance(part, AutoGuide) and part.prototype_trace is not None:
            for name, node in part.prototype_trace.nodes.items():
                if "posterior" in node.get("infer", {}):
                    raise ValueError(
                        f"this AutoGuide also guides {name}, one value per example, whose posterior its layer has: "
                        f"build it on the rest, {type(part).__name__}(guides.global_part(model)), or use "
                        f"guides.for_model(model, rest={type(part).__name__})"
                    )
