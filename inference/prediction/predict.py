"""The posterior predictive: likelihoods averaged over posterior samples, streamed over a data
set."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn import NumericalError, draws, local_posteriors
from probattn.evaluation_mode import evaluation_mode
from probattn.functional import padding
from probattn.guides import Program, global_sites, module_of
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.non_finite import NonFiniteOutputError, find_non_finite
from probattn.inference.objective import guide_checks
from probattn.inference.objective.coverage import check_coverage, guided_by
from probattn.inference.prediction.aggregate import join, summarise
from probattn.inference.prediction.latents import (
    Latents,
    device,
    draw_latents,
    global_part,
    is_program,
    label_site,
    parameters_of,
    predictive_sites,
)
from probattn.inference.prediction.mixture import Stacked
from probattn.inference.prediction.result import Prediction
from probattn.messages import is_of_draws, law_of
from probattn.param_store import follow
from probattn.pyro_internals import without_validation
from probattn.threads import one_thread_at_a_time

CPU_CHUNK_SIZE = 256
"""Examples times samples per forward pass on a CPU; 2,048 fall out of its caches and take half as
long again."""
GPU_CHUNK_SIZE = 16_384
"""Examples times samples per forward pass on a GPU."""


@one_thread_at_a_time
def predict(
    model: Program,
    guide: Callable[..., Any] | Mapping[str, Tensor] | Any | None,
    data: Tensor | Iterable,
    *,
    num_samples: int = 10,
    seed: int | None = None,
    keep_draws: bool = False,
    latents: Latents | None = None,
    vectorize: bool | None = None,
) -> Prediction:
    """Compute the posterior predictive of a batch or of a loader's batches, in evaluation mode.

    The global latent variables are sampled once and shared by all batches: sample s is one function
    on the whole data set. The dimension of the samples appears at the first stochastic layer; the
    layers before it run once per batch. Batches are read one at a time and run in chunks of a
    bounded number of examples times samples; of each, only its part of the result is kept.

    Args:
        model: a module with its labels at the site ``y``, or one under handlers such as
            ``pyro.condition(model, data=...)``, which runs each batch as a whole.
        guide: its guide, a module, or a function with its parameters in Pyro's store; or posterior
            samples of the global sites, such as those of :func:`~probattn.inference.sgld` or of
            Pyro's ``MCMC``; None samples from the prior. With posterior samples, local sites come
            from the posterior that their layer defines, or else from their prior.
        data: inputs ``(n, ...)`` or another batch, with labels or without (see
            :func:`~probattn.inference.batches.unpack_batch`); an iterable of batches; or a data
            set.
        num_samples: number of posterior samples S; posterior samples are thinned to S at equal
            distances.
        seed: seed of the samples; all of PyTorch's generators keep their states. None draws from
            the global generator.
        keep_draws: keep the probabilities of each sample, and the values of its latent variables.
        latents: result of :func:`~probattn.inference.prediction.latents.draw_latents`; None samples
            at the first batch.
        vectorize: True runs all samples at once, False one after another, for models whose shapes
            do not broadcast over a dimension of samples; None chooses False for models with global
            sites outside attention layers, such as Bayesian weights (``PyroSample`` in a PyTorch
            module).

    Raises:
        KeyError: posterior samples without a global site of the model.
        TypeError: labels in some batches only.
        ValueError: no data; an empty batch; labels of another shape than the likelihood's; NaN or
            Inf in the inputs of real tokens or in the outputs, with the batch's number; a guide
            that does not cover the model's latent sites (see
            :func:`~probattn.inference.objective.coverage.check_coverage`); posterior samples of
            another shape; without a guide, statements of sites outside attention layers (pass
            ``vectorize=False``).
        NumericalError: a layer's numerical failure, with the batch's number and the layer.
    """
    modules = {"model": module_of(model)}
    if isinstance(guide, nn.Module):
        guide_checks.check(model, guide)
        modules["guide"] = guide
    for module in modules.values():
        follow(module)
    replays = _Replays(model, guide, latents, num_samples=num_samples, vectorize=vectorize)
    own_seed = torch.random.fork_rng(enabled=seed is not None)
    with parameters_of(guide), own_seed, evaluation_mode(*modules.values()), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
        prediction = predict_batches(
            data, replays.likelihoods, modules, num_samples=num_samples, keep_draws=keep_draws
        )
    if keep_draws and replays.latents is not None:
        prediction = replace(prediction, latents=replays.latents.values())
    return prediction


def predict_batches(
    data: Tensor | Iterable,
    likelihoods: Callable[[Tensor, Tensor | None], Iterable[tuple[slice, dist.TorchDistribution]]],
    modules: Mapping[str, nn.Module],
    *,
    num_samples: int,
    keep_draws: bool = False,
) -> Prediction:
    """Average the likelihoods of all batches over posterior samples, with the batch's number in
    errors.

    Args:
        data, num_samples, keep_draws: as for :func:`predict`.
        likelihoods: yields chunks of a batch ``(x, mask)`` with their likelihoods, of batch shape
            ``(S, chunk)``, or ``(chunk,)`` if nothing was sampled.
        modules: by name, where the source of a NaN is looked for.

    Raises:
        ValueError, NumericalError: as for :func:`predict`.
    """
    parts = []
    for number, (x, y, mask) in enumerate(map(unpack_batch, iterate_batches(data))):
        if x.is_floating_point() and not padding.zeroed(x, mask).isfinite().all():
            raise ValueError(f"NaN or Inf in the inputs of batch {number}")
        with _named_errors(number, modules):
            for rows, likelihood in likelihoods(x, mask):
                shape = tuple(likelihood.batch_shape)
                if len(shape) > 2:
                    raise ValueError(f"the likelihood's batch shape is {shape}, not (S, examples)")
                part = summarise(
                    likelihood,
                    None if y is None else y[rows],
                    x.device,
                    num_samples=num_samples,
                    keep_draws=keep_draws,
                )
                parts.append(part)
    if not parts:
        raise ValueError("no data to predict: the loader gave no batch")
    return join(parts)


def chunks(x: Tensor, num_samples: int) -> Iterator[slice]:
    """Yield slices of a batch with a bounded number of examples times samples that run at once."""
    at_once = CPU_CHUNK_SIZE if x.device.type == "cpu" else GPU_CHUNK_SIZE
    size = max(1, at_once // num_samples)
    for start in range(0, len(x), size):
        yield slice(start, start + size)


@contextmanager
def _named_errors(number: int, modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Add the batch's number to errors inside, and the source of a NaN or Inf."""
    try:
        yield
    except (ValueError, NumericalError) as error:
        source = find_non_finite((), modules, ())
        error.add_note(f"batch {number}" + (f": NaN or Inf in {source}" if source else ""))
        raise


class _Replays:
    """Replays of a model against the samples of its global sites, which are drawn at the first
    batch."""

    def __init__(
        self, model: Program, source: Any, latents: Latents | None, **options: Any
    ) -> None:
        self.model = model
        self.source = source
        self.latents = latents
        self.options = options
        self.is_first_chunk = True

    def likelihoods(
        self, x: Tensor, mask: Tensor | None
    ) -> Iterator[tuple[slice, dist.TorchDistribution]]:
        """Yield chunks of a batch with their likelihoods, of batch shape ``(S, chunk)`` or
        ``(chunk,)``."""
        target = device(self.model) or x.device
        inputs = (x.to(target), None) if mask is None else (x.to(target), None, mask.to(target))
        latents = self.latents = self.latents or self._draw(inputs)
        at_once = self.options["num_samples"] if latents.vectorize else 1
        # Handlers and guides may set values for the examples of a whole batch.
        is_whole = latents.has_local_sites or not isinstance(self.model, nn.Module)
        for rows in [slice(None)] if is_whole else chunks(x, at_once):
            chunk = [None if value is None else value[rows] for value in inputs]
            try:
                with nullcontext() if self.is_first_chunk else without_validation():
                    likelihood = self._likelihood(latents, chunk)
            except ValueError:
                with without_validation():  # a NaN goes on to the outputs, whose error says more
                    self._likelihood(latents, chunk)
                raise
            self.is_first_chunk = False
            yield rows, likelihood

    def _draw(self, inputs: tuple) -> Latents:
        """Draw the global sites.

        Raises:
            NonFiniteOutputError: a value is NaN or Inf.
        """
        try:
            return draw_latents(self.model, self.source, inputs, **self.options)
        except ValueError as error:
            with without_validation():
                latents = draw_latents(self.model, self.source, inputs, **self.options)
            if source := find_non_finite((), {}, tuple(latents.traces)):
                raise NonFiniteOutputError(f"NaN or Inf in {source}") from error
            raise

    def _likelihood(self, latents: Latents, chunk: list) -> dist.TorchDistribution:
        """Return the likelihood of some examples under all samples."""
        if not latents.vectorize:
            rows = range(len(latents.traces))
            return Stacked([self._run(latents, row, chunk) for row in rows])
        with draws(self.options["num_samples"]):
            return self._run(latents, 0, chunk)

    def _run(self, latents: Latents, row: int, chunk: list) -> dist.TorchDistribution:
        """Return the likelihood of some examples under a trace of the global sites."""
        guided = latents.traces[row]
        from_prior = self.source is None
        if latents.has_local_sites:
            with torch.autocast(chunk[0].device.type, enabled=False):
                guide = poutine.replay(global_sites(self.source), trace=guided)
                guided = poutine.trace(guide).get_trace(*chunk)
        model = poutine.replay(guided_by(guided)(self.model), trace=guided)
        local_sites = nullcontext() if from_prior else local_posteriors()
        with local_sites, poutine.mask(mask=False), predictive_sites(from_prior=from_prior):
            trace = poutine.trace(model).get_trace(*chunk)
        if self.is_first_chunk and is_program(self.source):
            check_coverage(trace, guided, scale=False)
        elif self.is_first_chunk:  # other chunks get the same values of a user's own sites
            latents.traces[row] = global_part(trace)
            others = [name for name in latents.traces[row].nodes if name not in guided]
            if others and latents.vectorize and self.options["vectorize"] is None:
                raise ValueError(
                    f"site {others[0]} belongs to no attention layer: pass vectorize=False"
                )
        label = label_site(trace)
        _check_plated(label, len(chunk[0]))
        return law_of(label)


def _check_plated(label: Message, number: int) -> None:
    """Check that the labels are in a plate of the examples, without which they are one event.

    Raises:
        ValueError: they are not.
    """
    plates = [frame for frame in label["cond_indep_stack"] if not is_of_draws(frame)]
    if (-1, number) not in [(frame.dim, frame.size) for frame in plates]:
        raise ValueError(
            f"the labels {label['name']} are in no plate of the {number} examples at dimension −1, "
            "so they are one event: sample them inside pyro.plate, or use Supervised"
        )
