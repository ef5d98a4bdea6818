"""Posterior samples, from Markov chains or elsewhere, that take the place of a guide."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor


@dataclass(frozen=True, eq=False)
class PosteriorSamples:
    """R joint samples of the latent sites: row r of all sites is one sample.

    Args:
        samples: by site: ``(R, *event)`` for global sites, ``(R, n, *event)`` for local sites of n examples.
    """

    samples: Mapping[str, Tensor]

    @classmethod
    def from_source(cls, source: Any) -> Self | None:
        """Convert a mapping, the result of :func:`~probattn.inference.nuts`, or Pyro's ``MCMC``; None for other types.

        Raises:
            ValueError: no samples, or different numbers of samples per site.
        """
        if isinstance(source, cls):
            return source
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
