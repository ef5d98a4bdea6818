"""The posterior predictive: likelihoods averaged over posterior samples, streamed over a data set."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.replay_messenger import ReplayMessenger
from torch import Tensor, nn

from probattn.draws import draws
from probattn.evaluation_mode import evaluation_mode
from probattn.functional import padding
from probattn.functional.errors import NumericalError
from probattn.guides import Program
from probattn.inference import guide_checks
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.coverage import guided_by
from probattn.inference.non_finite import find_non_finite
from probattn.inference.prediction.aggregate import join, summarise
from probattn.inference.prediction.latents import Latents, PosteriorSamples, SampleLatents, labels_at, one_draw
from probattn.inference.prediction.mixture import Stacked
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.vectorization import broadcasts, global_sites, outside_layers
from probattn.inference.programs import ProgramModule, as_module, device, own_parameters
from probattn.pyro_internals import HANDLERS

CPU_CHUNK_SIZE = 256
"""Examples times samples per forward pass on a CPU; 2,048 fall out of its caches and take half as long again."""
GPU_CHUNK_SIZE = 16_384
"""Examples times samples per forward pass on a GPU."""


def predict(
    model: Program,
    guide: Program | PosteriorSamples | Mapping[str, Tensor] | None,
    data: Tensor | Iterable,
    *,
    num_samples: int = 10,
    seed: int | None = None,
    keep_draws: bool = False,
    latents: Trace | None = None,
    vectorize: bool | None = None,
) -> Prediction:
    """Compute the posterior predictive of a batch or of a loader's batches, in evaluation mode.

    The global latent variables are sampled once and shared by all batches: sample s is one function on the whole data
    set. The dimension of the samples appears at the first stochastic layer; the layers before it run once per batch.
    Batches are read one at a time and run in chunks of a bounded number of examples times samples; of each, only its
    part of the result is kept.

    Args:
        model: the model, with its labels at the site ``y``: a module, a function, or one under handlers such as
            ``pyro.condition(model, data=...)``.
        guide: its guide, a module or function; or posterior samples by site, such as those of
            :func:`~probattn.inference.nuts` or of Pyro's ``MCMC``; None samples from the prior.
        data: inputs ``(n, ...)`` or another batch, with labels or without (see
            :func:`~probattn.inference.batches.unpack_batch`); an iterable of batches; or a data set.
        num_samples: number of posterior samples S; posterior samples are thinned to S at equal distances.
        seed: seed of the samples; all of PyTorch's generators keep their states. None draws from the global generator.
        keep_draws: keep the probabilities of each sample.
        latents: result of :func:`~probattn.inference.prediction.latents.draw_latents` under ``draws(num_samples)``;
            None samples at the first batch.
        vectorize: True runs all samples at once, False one after another, for models whose shapes do not broadcast
            over a dimension of samples; None chooses False for models with global sites outside attention layers, such
            as Bayesian weights (``PyroSample`` in a PyTorch module).

    Raises:
        ValueError: no data; an empty batch; labels in some batches only, or of another shape than the likelihood's;
            NaN or Inf in the inputs of real tokens or in the outputs, with the batch's number; a guide that does not
            cover the model's latent sites (see :func:`~probattn.inference.coverage.check_coverage`);
            without a guide, sites outside attention layers (pass ``vectorize=False``).
        NumericalError: a layer's numerical failure, with the batch's number and the layer.
    """
    model, samples, parts = as_module(model), PosteriorSamples.from_source(guide), []
    guide = None if guide is None or samples is not None else as_module(guide)
    if guide is not None:
        guide_checks.check(model, guide)
    values = Latents(model, guide, num_samples, latents)
    if samples is not None:
        values = SampleLatents(model, samples, num_samples)
    predictive = _PosteriorPredictive(model, guide, values, vectorize)
    modules, seeded = predictive.modules.values(), torch.random.fork_rng(enabled=seed is not None)
    with own_parameters(*modules), evaluation_mode(*modules), torch.no_grad(), seeded:
        if seed is not None:
            torch.manual_seed(seed)
        for number, (x, y, mask) in enumerate(map(unpack_batch, iterate_batches(data))):
            if x.is_floating_point() and not padding.zeroed(x, mask).isfinite().all():
                raise ValueError(f"NaN or Inf in the inputs of batch {number}")
            inputs = predictive.prepare(x, y, mask)
            with predictive.name_batch_in_errors(number):
                for chunk, likelihood in predictive.likelihoods(inputs):
                    labels, options = None if y is None else y[chunk], {"keep_draws": keep_draws}
                    parts.append(summarise(likelihood, labels, x.device, num_samples=num_samples, **options))
    if not parts:
        raise ValueError("no data to predict: the loader gave no batch")
    values.finish(predictive.num_examples)
    return join(parts)


class _PosteriorPredictive:
    """Likelihoods of the labels under S posterior samples, chunk by chunk."""

    def __init__(self, model: nn.Module, guide: nn.Module | None, latents: Latents, vectorize: bool | None) -> None:
        self.model, self.latents, self.vectorize = model, latents, vectorize
        self.modules = {"model": model} | ({} if guide is None else {"guide": guide})
        self.draws, self.num_samples = draws(latents.num_samples), latents.num_samples
        self.device, self.num_examples, self.is_assumed = device(model, guide), 0, False

    @contextmanager
    def name_batch_in_errors(self, number: int) -> Iterator[None]:
        """Add the batch's number to errors inside, and the source of a NaN or Inf."""
        try:
            yield
        except (ValueError, NumericalError) as error:
            source = find_non_finite((), self.modules, ())
            if isinstance(error, NumericalError):
                because = f" (NaN or Inf in {source})" if source else ""
                raise NumericalError(f"batch {number}: {error}{because}") from error
            if source is None:
                raise
            raise ValueError(f"NaN or Inf in the outputs of batch {number}, from {source}") from error

    def prepare(self, x: Tensor, y: Tensor | None, mask: Tensor | None) -> tuple:
        """Return the model's arguments; before the first batch choose how samples run, and draw the global sites."""
        target = self.device or x.device
        inputs = (x.to(target), None) if mask is None else (x.to(target), None, mask.to(target))
        if not self.num_examples:
            self.latents.prepare(inputs, y)
            if self.vectorize is None:
                chunk = _rows(inputs, slice(self._chunk_size(x)))
                sites = self.latents.names()
                self.vectorize = broadcasts(self.model, self.latents.guide, lambda: chunk, sites=sites)
                self.is_assumed = self.vectorize and self.latents.guide is None
            self.latents.draw(inputs, vectorize=self.vectorize)
        return inputs

    def likelihoods(self, inputs: tuple) -> Iterator[tuple[slice, dist.TorchDistribution]]:
        """Yield chunks of a batch with their likelihoods, of batch shape ``(S, chunk)`` or ``(chunk,)``."""
        start, length = 0, len(inputs[0])
        while start < length:
            chunk = slice(start, start + self._chunk_size(inputs[0]))
            likelihood = self._likelihood(_rows(inputs, chunk))
            if len(likelihood.batch_shape) > 2:
                raise ValueError(
                    f"the likelihood has batch shape {tuple(likelihood.batch_shape)}, and not (samples, examples): the "
                    "outputs of the network have more dimensions than its likelihood takes"
                )
            yield chunk, likelihood
            self.num_examples += min(chunk.stop, length) - start
            start = chunk.stop

    def _chunk_size(self, x: Tensor) -> int:
        """Return the number of examples of a chunk."""
        set_values = any(
            isinstance(handler, ConditionMessenger | DoMessenger | ReplayMessenger) for handler in HANDLERS
        )
        if set_values or self.latents.has_local_sites or isinstance(self.model, ProgramModule):
            return len(x)  # handlers and guides may set values for the examples of a whole batch
        limit = CPU_CHUNK_SIZE if x.device.type == "cpu" else GPU_CHUNK_SIZE
        return max(1, limit // self.num_samples if self.vectorize else limit)

    def _likelihood(self, chunk: tuple) -> dist.TorchDistribution:
        if self.vectorize:
            with self.draws:
                return self._run(None, chunk)
        likelihoods = []
        for row in range(self.num_samples):
            with one_draw(row, of=self.num_samples):
                likelihoods.append(self._run(row, chunk))
        return Stacked(likelihoods)

    def _run(self, row: int | None, chunk: tuple) -> dist.TorchDistribution:
        """Return the likelihood of some examples under one sample, or under all if row is None."""
        latents = self.latents.trace(row, chunk, self.num_examples)
        with self.latents.local_handler(), poutine.mask(mask=False), labels_at():
            trace = poutine.trace(poutine.replay(guided_by(latents)(self.model), trace=latents)).get_trace(*chunk)
        if self.is_assumed and (others := outside_layers(self.model, global_sites(trace))):
            raise ValueError(f"site {others[0]} belongs to no attention layer: pass vectorize=False for such a model")
        self.latents.update(row, trace, latents, is_first_chunk=not self.num_examples)
        return trace.nodes["y"]["fn"]


def _rows(inputs: tuple, rows: slice) -> tuple:
    return tuple(None if value is None else value[rows] for value in inputs)
