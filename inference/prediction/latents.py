"""Latent values for prediction: from the prior, a guide, or posterior samples such as those of a
Markov chain."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn import draws
from probattn.functional.context import bound
from probattn.guides import Guide, Program, global_sites, module_of, sample_priors
from probattn.inference.objective.guide_checks import is_lazy
from probattn.inference.prediction.aggregate import check_outputs
from probattn.messages import is_auxiliary, is_global_latent, is_latent, is_local, law_of, value_of
from probattn.pyro_internals import sampled_attributes
from probattn.site_info import info_of, mark
from probattn.sites import SiteModule
from probattn.threads import one_thread_at_a_time

_LOGGER = logging.getLogger("probattn")
FIRST_DRAW: ContextVar[int | None] = ContextVar("first", default=None)
"""Number of the first draw inside, counted from 0, for guides whose draws take turns; None outside
predictions."""


class predictive_sites(Messenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Mark the labels, which :class:`~probattn.draws` does not expand, and local sites that come
    from their priors.

    Args:
        from_prior: let local sites that carry their posterior be sampled from their priors, as the
            global ones are.
    """

    def __init__(self, *, from_prior: bool) -> None:
        super().__init__()
        self.from_prior = from_prior

    def _pyro_sample(self, msg: Message) -> None:
        if is_label(msg):
            check_outputs(law_of(msg))  # before it is sampled, which on a GPU would end the process
            mark(msg, label=True)
        elif self.from_prior and info_of(msg).posterior is not None:
            mark(msg, from_prior=True)


def is_label(msg: Message) -> bool:
    """Return True for the site of the labels: that of ``Supervised``, at whatever path, or a user's
    site ``y``."""
    return info_of(msg).label or msg["name"] == "y"


def label_site(trace: Trace) -> Message:
    """Return the node of the labels.

    Raises:
        ValueError: no such site, or several.
    """
    samples = [node for node in trace.nodes.values() if node["type"] == "sample"]
    names = [str(node["name"]) for node in samples if is_label(node)]
    if len(names) != 1:
        found = ", ".join(names)
        raise ValueError(f"a model to predict has one site of labels, y; this one has [{found}]")
    return trace.nodes[names[0]]


@dataclass(frozen=True, eq=False)
class Latents:
    """Values of the global sites of S posterior samples, which the model is replayed against.

    Args:
        traces: one trace of all samples, whose values have batch shape ``(S, 1)``, or a trace of
            each sample.
        vectorize: True if all samples run at once.
        has_local_sites: True if the guide draws sites of each example, perhaps for a whole batch
            alone.
    """

    traces: list[Trace]
    vectorize: bool
    has_local_sites: bool = False

    def values(self) -> dict[str, Tensor]:
        """Return the draws ``(S, *event)`` by site, without helper variables of guides."""
        values = {}
        for name, site in self.traces[0].nodes.items():
            if not is_auxiliary(site):
                draws = [value_of(trace.nodes[name]) for trace in self.traces]
                values[name] = draws[0].squeeze(1) if self.vectorize else torch.stack(draws)
        return values

    def part(self, rows: slice) -> "Latents":
        """Return those of some of the samples."""
        if not self.vectorize:
            return replace(self, traces=self.traces[rows])
        part = Trace()
        for name, site in self.traces[0].nodes.items():
            part.add_node(name, **site | {"value": value_of(site)[rows]})
        return replace(self, traces=[part])


def device(model: Program) -> torch.device | None:
    """Return the device of a model's first parameter, or None without parameters."""
    parameter = next(module_of(model).parameters(), None)
    return None if parameter is None else parameter.device


def arguments(model: Program, x: Tensor, mask: Tensor | None) -> tuple:
    """Return the arguments of a model without labels, on its device."""
    target = device(model) or x.device
    return (x.to(target), None) if mask is None else (x.to(target), None, mask.to(target))


def is_program(source: Any) -> bool:
    """Return True for a guide, a module or function, as opposed to posterior samples."""
    is_samples = hasattr(source, "get_samples") or isinstance(source, Mapping)
    return callable(source) and not is_samples


def parameters_of(source: Any) -> AbstractContextManager[Any]:
    """Return the context of a guide's parameters: Pyro's store for a function, a store of its own
    for a module."""
    is_function = is_program(source) and not isinstance(source, nn.Module)
    return nullcontext() if is_function else pyro.get_param_store().scope()


@one_thread_at_a_time
def draw_latents(
    model: Program, source: Any, inputs: tuple, *, num_samples: int, vectorize: bool | None = None
) -> Latents:
    """Draw the global latent variables of S samples, by runs of the guide that do not depend on the
    batch.

    Args:
        model, source, num_samples, vectorize: as for :func:`~probattn.inference.predict`.
        inputs: arguments of the model for a batch.

    Raises:
        KeyError: posterior samples without a global site of the model.
        ValueError: posterior samples of another shape than the site's; an AutoGuide without
            parameters.
    """
    if source is not None and not is_program(source):
        return _stored(model, source, inputs, num_samples=num_samples, vectorize=vectorize)
    if vectorize is None:
        vectorize = broadcasts(model, source, lambda: inputs)
    traces = []
    for row in range(1 if vectorize else num_samples):
        with draws(num_samples) if vectorize else nullcontext(), bound(FIRST_DRAW, row):
            traces.append(run_guide(model, source, inputs))
    has_local_sites = any(
        is_latent(site) and is_local(site, traces[0]) for site in traces[0].nodes.values()
    )
    return Latents([global_part(trace) for trace in traces], vectorize, has_local_sites)


def _stored(
    model: Program, source: Any, inputs: tuple, *, num_samples: int, vectorize: bool | None
) -> Latents:
    """Return S of R posterior samples by site ``(R, *event)``, at equal distances; some repeat if R
    < S."""
    samples = source if isinstance(source, Mapping) else source.get_samples()
    one = tuple(None if value is None else value[:1] for value in inputs)
    with poutine.block(), poutine.mask(mask=False), predictive_sites(from_prior=True):
        prior = global_part(poutine.trace(model).get_trace(*one))
    if vectorize is None:
        vectorize = _are_of_layers(model, prior.nodes)
    traces = [Trace() for _ in range(1 if vectorize else num_samples)]
    for name, site in prior.nodes.items():
        values = samples[name]
        shape = value_of(site).shape
        if values.shape[1:] != shape:
            raise ValueError(
                f"samples of {name} must have shape {('R', *shape)}, got {tuple(values.shape)}"
            )
        draws = thinned(values, num_samples).unsqueeze(1)  # (S, 1, *event)
        for trace, value in zip(traces, [draws] if vectorize else draws.squeeze(1), strict=True):
            trace.add_node(name, **site | {"value": value})
    return Latents(traces, vectorize)


def thinned(samples: Tensor, number: int) -> Tensor:
    """Return some of R samples ``(R, ...)``, at equal distances; some repeat if R is smaller."""
    rows = torch.arange(number, device=samples.device) * len(samples) // number
    return samples[rows]


@one_thread_at_a_time
def broadcasts(
    model: Program, guide: Callable[..., Any] | None, batch: Callable[[], tuple]
) -> bool:
    """Return True if all global latent sites belong to attention layers, whose shapes broadcast
    over samples.

    Without a guide these are known of layers and ``PyroSample`` attributes alone. Samples of other
    models run one after another, which is logged.

    Args:
        model, guide: the model and its guide, with its parameters.
        batch: returns ``(x, y)`` or ``(x, y, mask)`` on the model's device; called only for a
            user's guide.
    """
    if guide is None:
        return _are_of_layers(model, sampled_attributes(module_of(model)))
    if isinstance(guide, Guide) and guide.rest is None:
        return _are_of_layers(model, guide.sites)
    with torch.no_grad(), torch.random.fork_rng():
        sites = global_part(run_guide(model, guide, batch())).nodes
    return _are_of_layers(model, [name for name, site in sites.items() if not is_auxiliary(site)])


def _are_of_layers(model: Program, sites: Iterable[str]) -> bool:
    modules = module_of(model).modules()
    layers = {module.name for module in modules if isinstance(module, SiteModule)}
    others = sorted({site for site in sites if site.rpartition(".")[0] not in layers})
    if others:
        reason = f"{', '.join(others)} belongs to no attention layer"
        _LOGGER.warning("samples run one after another (vectorize=False): %s", reason)
    return not others


@one_thread_at_a_time
def run_guide(model: Program, guide: Callable[..., Any] | None, inputs: tuple) -> Trace:
    """Trace the guide, or for None the priors of the model's layers, outside autocast.

    Raises:
        ValueError: an AutoGuide without parameters, which would take the labels for a latent site.
    """
    if isinstance(guide, nn.Module) and is_lazy(guide):
        raise ValueError(
            "this AutoGuide has no parameters yet: call inference.materialise(guide, (x, y)) first"
        )

    def program(*inputs: Any) -> Any:
        return sample_priors(module_of(model)) if guide is None else global_sites(guide)(*inputs)

    target = device(model) or torch.device("cpu")
    with parameters_of(guide), torch.autocast(target.type, enabled=False):
        return poutine.trace(program).get_trace(*inputs)


def global_part(trace: Trace) -> Trace:
    """Return a trace of the global latent sites alone; the inputs would keep the first batch in
    memory."""
    part = Trace()
    for name, site in trace.nodes.items():
        if is_global_latent(site, trace):
            part.add_node(name, **site)
    return part
