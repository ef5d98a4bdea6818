"""The posterior predictive: averages over draws of the latent sites, streamed over a data set."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from torch import Tensor, nn

from probattn import guides
from probattn.coverage import check_coverage, checked_replay
from probattn.functional.errors import NumericalError
from probattn.handlers import (
    draws,
    global_sites_only,
    is_global_latent,
    is_latent,
    is_local,
    is_of_draws,
    labels_at,
    local_posteriors,
    local_priors,
    one_draw,
)
from probattn.inference.non_finite import find_non_finite, first_line, refuses_nan
from probattn.inference.prediction.aggregate import join, summarise
from probattn.inference.prediction.posterior_samples import PosteriorSamples
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.stacked_likelihood import stack
from probattn.inference.prediction.vectorization import NON_BROADCASTING, has_bayesian_weights, note_sequential
from probattn.programs import FunctionModule, Program, as_module, device, local_params
from probattn.pyro_compat import HANDLER_STACK

__all__ = ["CPU_EXAMPLE_DRAWS", "GPU_EXAMPLE_DRAWS", "Prediction", "draw_latents", "predict"]

CPU_EXAMPLE_DRAWS = 256
"""Examples times draws that run at once on a CPU: more fall out of its caches and take a third longer."""
GPU_EXAMPLE_DRAWS = 16_384


def predict(
    model: Program,
    guide: Program | PosteriorSamples | Mapping[str, Tensor] | None,
    data: Tensor | Iterable,
    *,
    num_samples: int = 10,
    keep_draws: bool = False,
    latents: Trace | None = None,
    vectorize: bool | None = None,
) -> Prediction:
    """Compute the posterior predictive of a batch or of a loader's batches, in evaluation mode.

    The draws are made once and shared by all batches: draw s is one function on the whole data set. Their dimension
    appears at the first stochastic layer, so that the layers below run once a batch. A loader's batches are seen one
    at a time, in pieces of a bounded number of examples times draws; what is kept of each is its part of the result.

    Args:
        model: the model, with its labels at the site ``y``: a module, a function, or one under handlers such as
            ``pyro.condition(model, data=...)``.
        guide: its guide, a module or function; or posterior samples by site, such as those of
            :func:`~probattn.inference.nuts` or of Pyro's ``MCMC``; None draws from the prior.
        data: inputs ``(n, ...)``, or an iterable of inputs, ``(x, y)`` or ``(x, y, mask)``.
        num_samples: S. Of posterior samples, S are taken at equal distances.
        keep_draws: keep the probabilities of each draw.
        latents: what :func:`draw_latents` gives under ``draws(num_samples)``; by default it draws at the first batch.
        vectorize: True runs all draws at once, False one after another, for models whose shapes do not broadcast over
            a dimension of draws; None chooses False for Bayesian weights (``PyroSample`` in a module of PyTorch), and
            where a model with global sites outside attention layers fails at the first batch.

    Raises:
        ValueError: no data; NaN or Inf in the inputs or the outputs, with the batch's number; a guide that does not
            cover the model's latent sites (see :func:`~probattn.coverage.check_coverage`).
        NumericalError: a layer's numerical failure, with the batch's number and the layer.
    """
    predictor = _Predictor(model, guide, num_samples=num_samples, latents=latents, vectorize=vectorize)
    parts = []
    with predictor.ready():
        for number, (x, y, mask) in enumerate(_batches(data)):
            if x.is_floating_point() and not x.isfinite().all():
                raise ValueError(f"NaN or Inf in the inputs of batch {number}")
            inputs = predictor.prepare(x, y, mask)
            with predictor.located(number):
                for piece, likelihood in predictor.pieces(inputs):
                    labels = None if y is None else y[piece]
                    parts.append(
                        summarise(likelihood, labels, x.device, num_samples=num_samples, keep_draws=keep_draws)
                    )
    if not parts:
        raise ValueError("no data to predict: the loader gave no batch")
    if predictor.samples is not None:
        predictor.samples.check_examples(predictor.seen)
    return join(parts)


def draw_latents(model: Program, guide: Program | None, inputs: tuple) -> Trace:
    """Draw the global latent sites by one run of the guide (or of the prior, for None), outside autocast.

    Raises:
        ValueError: an AutoGuide that has no parameters yet.
    """
    with local_params(*(each for each in (model, guide) if each is not None)):
        return _global_part(_run_guide(model, guide, inputs))


class _Predictor:
    """The state of a prediction behind :func:`predict`, whose arguments these are."""

    def __init__(
        self, model: Program, guide: Any, *, num_samples: int, latents: Trace | None, vectorize: bool | None
    ) -> None:
        self.samples = None if guide is None or isinstance(guide, nn.Module) else PosteriorSamples.of(guide)
        self.model = as_module(model)
        self.guide = None if guide is None or self.samples is not None else as_module(guide)
        if self.guide is not None:
            guides.check(self.model, self.guide)
        self.parts = {"model": self.model} | ({} if self.guide is None else {"guide": self.guide})
        self.draws, self.num_samples = draws(num_samples), num_samples
        self.latents: list[Trace] | None = None if latents is None else [latents]
        self.may_fall_back = vectorize is None
        self.vectorize = not has_bayesian_weights(self.model) if vectorize is None else vectorize
        if not self.vectorize and self.may_fall_back:
            note_sequential(self.model, "weights of its layers are latent sites (PyroSample)")
        self.device = device(self.model, self.guide)
        self.has_guided_examples = False
        self.is_checked = False
        self.seen = 0

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Evaluation mode without gradients; each module has its own mode again behind."""
        modes = [(module, module.training) for part in self.parts.values() for module in part.modules()]
        try:
            for part in self.parts.values():
                part.eval()
            with torch.no_grad(), local_params(*self.parts.values()):
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    @contextmanager
    def located(self, number: int) -> Iterator[None]:
        """Errors inside tell the batch, and a NaN or Inf its source."""
        try:
            yield
        except (ValueError, NumericalError) as error:
            source = find_non_finite((), self.parts, ())
            if isinstance(error, NumericalError):
                because = f" (NaN or Inf in {source})" if source else ""
                raise NumericalError(f"batch {number}: {error}{because}") from error
            if source is None and not refuses_nan(error):
                raise
            why = f"from {source}" if source else first_line(error)
            raise ValueError(f"NaN or Inf in the outputs of batch {number}, {why}") from error

    def prepare(self, x: Tensor, y: Tensor | None, mask: Tensor | None) -> tuple:
        """Return the model's arguments on its device; before the first batch, draw the global sites."""
        here = self.device or x.device
        inputs = (x.to(here), None) if mask is None else (x.to(here), None, mask.to(here))
        if self.latents is None and self.samples is None:
            if self.guide is not None and y is not None:
                guides.materialise(self.guide, (inputs[0], y.to(here), *inputs[2:]))
            self.latents = self._draw(inputs)
        if self.samples is not None and not self.is_checked:
            self.samples.check(self._prior_trace(inputs))
        return inputs

    def pieces(self, inputs: tuple) -> Iterator[tuple[slice, dist.TorchDistribution]]:
        """Yield the likelihood, of batch shape ``(S, batch)`` or ``(batch,)``, of a bounded number of examples."""
        length = len(inputs[0])
        limit = CPU_EXAMPLE_DRAWS if inputs[0].device.type == "cpu" else GPU_EXAMPLE_DRAWS
        size = max(1, limit // self.num_samples if self.vectorize else limit)
        if self.has_guided_examples or isinstance(self.model, FunctionModule) or any(map(_sets_values, HANDLER_STACK)):
            size = length  # values of single examples may be given for the whole batch alone
        for start in range(0, length, size):
            piece = slice(start, start + size)
            part = tuple(None if each is None else each[piece] for each in inputs)
            yield piece, self._likelihood(part, inputs)
            self.seen += len(part[0])

    def _likelihood(self, part: tuple, inputs: tuple) -> dist.TorchDistribution:
        try:
            return self._run_all(part)
        except NON_BROADCASTING as error:
            if not self._falls_back(error, part):
                raise
        self.vectorize = False
        note_sequential(self.model, "it does not broadcast over draws")
        if self.samples is None:
            self.latents = self._draw(inputs)
        return self._run_all(part)

    def _falls_back(self, error: Exception, part: tuple) -> bool:
        if self.is_checked or not (self.vectorize and self.may_fall_back) or refuses_nan(error):
            return False
        try:
            trace = self._prior_trace(part)
        except NON_BROADCASTING:  # the error is not one of draws
            return False
        shared = {site["name"] for site in _samples(trace) if is_global_latent(site, trace)}
        return bool(shared - {name for name, _ in guides.latent_sites(self.model)})

    def _run_all(self, part: tuple) -> dist.TorchDistribution:
        if self.vectorize:
            with self.draws:
                return self._run(0, part)
        likelihoods = []
        for row in range(self.num_samples):
            with one_draw(row, of=self.num_samples):
                likelihoods.append(self._run(row, part))
        return stack(likelihoods)

    def _run(self, row: int, part: tuple) -> dist.TorchDistribution:
        """The likelihood of some examples given one set of global latents; local ones are drawn here."""
        latents = self._latents(row, part)
        with local_priors() if self.is_prior else local_posteriors(), poutine.mask(mask=False), labels_at("y"):
            trace = poutine.trace(checked_replay(latents)(self.model)).get_trace(*part)
        if self.vectorize and self.may_fall_back and not self.is_checked and self._may_mix(trace):
            raise ValueError("draws and examples cannot be told apart in this model's shapes")
        if self.is_prior and not self.seen:
            self.latents[row] = _global_part(trace)  # sites that belong to no layer, too
        elif self.guide is not None and not self.is_checked:
            check_coverage(trace, latents, scale=False)
        self.is_checked = True
        return trace.nodes["y"]["fn"]

    def _may_mix(self, trace: Trace) -> bool:
        """True where a dimension of a site outside layers, or the examples', may be taken for that of the draws."""
        own = {name for name, _ in guides.latent_sites(self.model)}
        others = [site for site in _samples(trace) if is_global_latent(site, trace) and site["name"] not in own]
        plated = any(
            frame.vectorized and not is_of_draws(frame) for site in others for frame in site["cond_indep_stack"]
        )
        return plated or bool(others and len(trace.nodes["y"]["fn"].batch_shape) == 1)

    @property
    def is_prior(self) -> bool:
        """True without a guide and without samples."""
        return self.guide is None and self.samples is None

    def _latents(self, row: int, part: tuple) -> Trace:
        if self.samples is not None:
            examples = slice(self.seen, self.seen + len(part[0]))
            return self.samples.trace(self.num_samples, None if self.vectorize else row, examples=examples)
        if self.guide is None:
            return self.latents[row]
        with torch.autocast(part[0].device.type, enabled=False), global_sites_only():
            return poutine.trace(poutine.replay(self.guide, trace=self.latents[row])).get_trace(*part)

    def _draw(self, inputs: tuple) -> list[Trace]:
        """Draws the global sites, all at once, or S times one after another."""
        found = []
        for _ in range(1 if self.vectorize else self.num_samples):
            with self.draws if self.vectorize else nullcontext():
                trace = _run_guide(self.model, self.guide, inputs)
            found.append(_global_part(trace))
            self.has_guided_examples = any(is_latent(site) and is_local(site, trace) for site in _samples(trace))
        return found

    def _prior_trace(self, inputs: tuple) -> Trace:
        """A run of the model from the prior on one example, which tells its sites."""
        one = tuple(None if each is None else each[:1] for each in inputs)
        with poutine.block(), local_priors(), poutine.mask(mask=False), labels_at("y"):
            return poutine.trace(self.model).get_trace(*one)


def _run_guide(model: Program, guide: Program | None, inputs: tuple) -> Trace:
    if guide is not None and guides.lacks_prototype(guide):
        raise ValueError("this AutoGuide has no parameters yet: call guides.materialise(guide, (x, y)) first")
    program = guides.priors_of(model) if guide is None else guide
    here = device(model, guide) or torch.device("cpu")
    with torch.autocast(here.type, enabled=False), global_sites_only():
        return poutine.trace(program).get_trace(*inputs)


def _global_part(trace: Trace) -> Trace:
    """The global latent sites alone: the inputs, too, would keep the first batch in memory."""
    kept = Trace()
    for site in _samples(trace):
        if is_global_latent(site, trace):
            kept.add_node(site["name"], **site)
    return kept


def _sets_values(handler: Messenger) -> bool:
    return isinstance(handler, ConditionMessenger | DoMessenger | ReplayMessenger)


def _samples(trace: Trace) -> Iterator[dict]:
    return (site for site in trace.nodes.values() if site["type"] == "sample")


def _batches(data: Tensor | Iterable) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    for batch in (data,) if isinstance(data, Tensor) else data:
        x, y, mask = (*((batch,) if isinstance(batch, Tensor) else batch), None, None)[:3]
        yield x, y, mask
