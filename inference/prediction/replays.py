"""Replays of a model against the samples of its global sites, in chunks of a batch."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Self

import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn import draws, local_posteriors
from probattn.guides import Program
from probattn.inference.non_finite import NonFiniteOutputError, find_non_finite
from probattn.inference.objective.coverage import check_coverage, guided_by
from probattn.inference.prediction.latents import (
    Latents,
    arguments,
    draw_latents,
    global_part,
    is_program,
    label_site,
    predictive_sites,
    run_guide,
)
from probattn.inference.prediction.mixture import Stacked
from probattn.messages import is_of_draws, law_of
from probattn.pyro_internals import without_validation

CPU_CHUNK_SIZE = 256
"""Examples times samples per forward pass on a CPU; 2,048 fall out of its caches and take half as
long again."""
GPU_CHUNK_SIZE = 16_384
"""Examples times samples per forward pass on a GPU."""


def chunks(x: Tensor, num_samples: int) -> Iterator[slice]:
    """Yield slices of a batch with a bounded number of examples times samples that run at once."""
    size = max(1, (CPU_CHUNK_SIZE if x.device.type == "cpu" else GPU_CHUNK_SIZE) // num_samples)
    for start in range(0, len(x), size):
        yield slice(start, start + size)


class Replays:
    """Replays of a model against the samples of its global sites, which are drawn at the first
    batch."""

    def __init__(
        self, model: Program, source: Any, latents: Latents | None, **options: Any
    ) -> None:
        self.model = model
        self.source = source
        self.latents = latents
        self.options = options
        self.num_samples = options["num_samples"]
        self.is_first_chunk = True
        self.above: Any = None

    def split(self, x: Tensor, mask: Tensor | None) -> tuple[Self, Self]:
        """Return replays of the first sample, and of the others, on what the model keeps of the
        inputs.

        Args:
            x, mask: of the first batch.

        Raises:
            ValueError: fewer than two samples.
        """
        if self.num_samples < 2:
            raise ValueError("refine needs at least two samples: num_samples=2 or more")
        latents = self.latents or self._draw(arguments(self.model, x, mask))
        first, rest = (
            type(self)(self.model, self.source, latents.part(rows), **self.options)
            for rows in (slice(1), slice(1, None))
        )
        first.num_samples, rest.num_samples = 1, self.num_samples - 1
        above = getattr(self.model, "above", None)
        rest.above = above() if above and latents.vectorize else None
        rest.model = rest.above or self.model
        return first, rest

    def likelihoods(
        self, x: Tensor, mask: Tensor | None
    ) -> Iterator[tuple[slice, dist.TorchDistribution]]:
        """Yield chunks of a batch with their likelihoods, of batch shape ``(S, chunk)`` or
        ``(chunk,)``."""
        inputs = arguments(self.model, x, mask)
        latents = self.latents = self.latents or self._draw(inputs)
        at_once = self.num_samples if latents.vectorize else 1
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
        with draws(self.num_samples) if latents.vectorize else nullcontext():
            likelihoods = [self._run(latents, row, chunk) for row in range(len(latents.traces))]
        return likelihoods[0] if latents.vectorize else Stacked(likelihoods)

    def _run(self, latents: Latents, row: int, chunk: list) -> dist.TorchDistribution:
        """Return the likelihood of some examples under a trace of the global sites."""
        guided = latents.traces[row]
        from_prior = self.source is None
        if latents.has_local_sites:
            with poutine.replay(trace=guided):
                guided = run_guide(self.model, self.source, tuple(chunk))
        local_sites = nullcontext() if from_prior else local_posteriors()
        with local_sites, poutine.mask(mask=False), predictive_sites(from_prior=from_prior):
            trace = poutine.trace(
                poutine.replay(guided_by(guided)(self.model), trace=guided)
            ).get_trace(*chunk)
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
    sizes = [
        frame.size
        for frame in label["cond_indep_stack"]
        if frame.dim == -1 and not is_of_draws(frame)
    ]
    if number not in sizes:
        raise ValueError(
            f"the labels {label['name']} are in no plate of the {number} examples at dimension −1, "
            "so they are one "
            "event: sample them inside pyro.plate, or use Supervised"
        )
