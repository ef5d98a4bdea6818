"""Latent values for prediction: from the prior, a guide, or posterior samples such as those of a Markov chain."""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.draws import draws
from probattn.guides import Program, sample_priors, unwrapped
from probattn.inference.coverage import check_coverage
from probattn.inference.guide_checks import lacks_prototype, materialise
from probattn.inference.programs import device, own_parameters
from probattn.local_sites import local_posteriors
from probattn.messages import is_global_latent, is_latent, is_local
from probattn.pyro_internals import HANDLERS


class one_draw(Messenger):  # noqa: N801
    """Mark a run as one of several draws that run sequentially.

    Args:
        row: index of the draw, from 0.
        of: number of draws.
    """

    def __init__(self, row: int, *, of: int) -> None:
        super().__init__()
        self.row, self.of = row, of


def current_draw() -> one_draw | None:
    """Return the current draw if draws run sequentially (see :class:`one_draw`), else None."""
    return next((handler for handler in reversed(HANDLERS) if isinstance(handler, one_draw)), None)


class local_priors(Messenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Let local latent sites be sampled from their priors, as the global ones of the replay were."""

    def _pyro_sample(self, msg: Message) -> None:
        if "posterior" in msg["infer"]:
            msg["infer"]["from_prior"] = True


class labels_at(Messenger):  # noqa: N801
    """Mark the site ``y`` of the labels, which :class:`~probattn.draws` does not expand beyond what it depends on."""

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] == "y":
            msg["infer"] = msg["infer"] | {"label": True}


def draw_latents(model: Program, guide: Program | None, inputs: tuple) -> Trace:
    """Draw the global latent variables by one run of the guide (of the prior for None), outside autocast.

    Raises:
        ValueError: an AutoGuide without parameters.
    """
    with own_parameters(model, guide):
        return _global_part(run_guide(model, guide, inputs))


def prior_trace(model: Program, inputs: tuple) -> Trace:
    """Trace the model with all sites drawn from their priors, to list its sites."""
    with poutine.block(), local_priors(), poutine.mask(mask=False), labels_at():
        return poutine.trace(model).get_trace(*inputs)


class Latents:
    """Latent values that the model is replayed against: global sites from the guide, or from the prior without one.

    A guide runs on each chunk for its local sites. ``row`` is the number of a sample that runs alone, and None where
    all S run at once.

    Args:
        model: the model.
        guide: its guide, or None.
        num_samples: S.
        global_sites: trace of the global sites of all samples; None draws them at the first batch.

    Attributes:
        has_local_sites: True if values of local sites are drawn for a whole batch, which may not be split then.
    """

    def __init__(
        self, model: nn.Module, guide: nn.Module | None, num_samples: int, global_sites: Trace | None = None
    ) -> None:
        self.model, self.guide, self.num_samples = model, guide, num_samples
        self.traces = None if global_sites is None else [global_sites]
        self.has_local_sites = self.is_checked = False
        self.local_handler = local_priors if guide is None else local_posteriors

    def prepare(self, inputs: tuple, labels: Tensor | None) -> None:
        """Create an AutoGuide's parameters if there are labels."""
        if self.guide is not None and self.traces is None and labels is not None:
            materialise(self.guide, (inputs[0], labels.to(inputs[0].device), *inputs[2:]))

    def names(self) -> Collection[str] | None:
        """Return the names of the latent sites, if they are known before the model runs."""
        return None

    def draw(self, inputs: tuple, *, vectorize: bool) -> None:
        """Draw the global sites if none were given, all samples at once or one after another."""
        if self.traces is not None:
            return
        self.traces = []
        for _ in range(1 if vectorize else self.num_samples):
            with draws(self.num_samples) if vectorize else nullcontext():
                trace = run_guide(self.model, self.guide, inputs)
            self.traces.append(_global_part(trace))
            self.has_local_sites = any(is_latent(site) and is_local(site, trace) for site in trace.nodes.values())

    def trace(self, row: int | None, chunk: tuple, start: int) -> Trace:
        """Return the trace to replay for a chunk of examples, of which the first is example ``start``."""
        if self.guide is None:
            return self.traces[row or 0]
        with torch.autocast(chunk[0].device.type, enabled=False):
            return poutine.trace(poutine.replay(self.guide, trace=self.traces[row or 0])).get_trace(*chunk)

    def update(self, row: int | None, model_trace: Trace, replayed: Trace, *, is_first_chunk: bool) -> None:
        """Check once that the guide covers the model; without one, keep the values of the first run."""
        if self.guide is None and is_first_chunk:
            self.traces[row or 0] = _global_part(model_trace)
        elif self.guide is not None and not self.is_checked:
            check_coverage(model_trace, replayed, scale=False)
            self.is_checked = True

    def finish(self, num_examples: int) -> None:
        """Check the number of predicted examples at the end."""


@dataclass(frozen=True, eq=False)
class PosteriorSamples:
    """R joint samples of the latent sites: row r of all sites is one sample.

    Args:
        samples: by site: ``(R, *event)`` for global sites, ``(R, n, *event)`` for local sites of n examples.
    """

    samples: Mapping[str, Tensor]

    @classmethod
    def from_source(cls, source: Any) -> Self | None:
        """Convert a mapping, the result of :func:`~probattn.inference.nuts`, or Pyro's ``MCMC``; None for guides.

        Raises:
            ValueError: no samples, or different numbers of samples per site.
        """
        if source is None or isinstance(source, cls | nn.Module):
            return source if isinstance(source, cls) else None
        samples = source if isinstance(source, Mapping) else getattr(source, "draws", None)
        if samples is None and callable(getattr(source, "get_samples", None)):
            samples = source.get_samples()
        if not isinstance(samples, Mapping):
            return None
        numbers = {len(values) for values in samples.values()}
        if len(numbers) != 1 or 0 in numbers:
            raise ValueError(
                f"posterior samples must have the same number R ≥ 1 for every site, got {numbers or 'none'}"
            )
        return cls(samples)


class SampleLatents(Latents):
    """Values of posterior samples, of global and of local sites.

    Args:
        model: the model.
        samples: R joint samples, of which S are taken at equal distances; some repeat if R < S.
        num_samples: S.
    """

    def __init__(self, model: nn.Module, samples: PosteriorSamples, num_samples: int) -> None:
        super().__init__(model, None, num_samples, Trace())
        self.samples, self.local_handler = samples.samples, local_posteriors
        self.sites: dict[str, tuple[int, bool]] | None = None
        """By site, the number of dimensions of its event, and True for local sites."""

    def prepare(self, inputs: tuple, labels: Tensor | None) -> None:
        """Check the samples against the latent sites of the model.

        Raises:
            ValueError: missing or unknown sites; samples of the wrong shape.
        """
        one = tuple(None if value is None else value[:1] for value in inputs)
        self.sites = self._check_sites(prior_trace(self.model, one))

    def names(self) -> Collection[str]:
        """Return the names of the global latent sites."""
        return [name for name, (_, is_local_site) in self.sites.items() if not is_local_site]

    def update(self, row: int | None, model_trace: Trace, replayed: Trace, *, is_first_chunk: bool) -> None:
        """Do nothing: the sites were checked before the first batch."""

    def trace(self, row: int | None, chunk: tuple, start: int) -> Trace:
        """Return the values of the chunk's examples, with the batch shape of ``draws(S)`` if row is None."""
        trace, stop = Trace(), start + len(chunk[0])
        for name, values in self.samples.items():
            index = (torch.arange(self.num_samples) * len(values) // self.num_samples).to(values.device)
            event_dim, local = self.sites[name]
            value = values[index][:, start:stop] if local else values[index].unsqueeze(1)
            if row is not None:
                value = value[row] if local else value[row, 0]
            fn = dist.Delta(value, event_dim=event_dim)
            site = {"fn": fn, "value": value, "is_observed": False, "infer": {}, "cond_indep_stack": (), "scale": 1.0}
            trace.add_node(name, name=name, type="sample", args=(), kwargs={}, mask=None, done=True, **site)
        return trace

    def finish(self, num_examples: int) -> None:
        """Check that the predicted examples are as many as those of local samples.

        Raises:
            ValueError: another number of examples, with the site.
        """
        for name, values in self.samples.items():
            if self.sites[name][1] and values.shape[1] != num_examples:
                raise ValueError(
                    f"the samples of {name} belong to the {values.shape[1]} examples that the chain was run on, and "
                    f"{num_examples} were predicted: predict these examples, in their order"
                )

    def _check_sites(self, prior: Trace) -> dict[str, tuple[int, bool]]:
        latent = {name: site for name, site in prior.nodes.items() if is_latent(site)}
        missing = [name for name in latent if name not in self.samples]
        if missing or set(self.samples) - set(latent):
            raise ValueError(
                f"posterior samples must be those of the model's latent sites, {', '.join(latent)}; got "
                f"{', '.join(self.samples)}"
            )
        for name, values in self.samples.items():
            event, dims = latent[name]["fn"].event_shape, 1 + is_local(latent[name], prior)
            if values.shape[dims:] != event:
                expected = ", ".join(["R", *["n"] * (dims - 1), *map(str, event)])
                raise ValueError(
                    f"samples of {name} must have shape ({expected}), with the chains concatenated; got "
                    f"{tuple(values.shape)}"
                )
        return {name: (site["fn"].event_dim, is_local(site, prior)) for name, site in latent.items()}


def run_guide(model: Program, guide: Program | None, inputs: tuple) -> Trace:
    """Trace the guide, or for None the priors of the model's layers, outside autocast.

    Raises:
        ValueError: an AutoGuide without parameters.
    """
    if guide is not None and lacks_prototype(guide):
        raise ValueError("this AutoGuide has no parameters yet: call inference.materialise(guide, (x, y)) first")
    program = guide
    if program is None:  # the sites of a function's own are drawn in its first run
        module = unwrapped(model)
        program = (lambda *inputs: sample_priors(module)) if isinstance(module, nn.Module) else lambda *inputs: None
    device_type = (device(model, guide) or torch.device("cpu")).type
    with torch.autocast(device_type, enabled=False):
        return poutine.trace(program).get_trace(*inputs)


def _global_part(trace: Trace) -> Trace:
    """Return a trace of the global latent sites alone; the inputs would keep the first batch in memory."""
    global_sites = Trace()
    for name, site in trace.nodes.items():
        if is_global_latent(site, trace):
            global_sites.add_node(name, **site)
    return global_sites
