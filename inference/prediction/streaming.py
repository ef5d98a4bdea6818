"""Likelihoods of batches, averaged over posterior samples one batch at a time."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyro.distributions as dist
from torch import Tensor, nn

from probattn import NumericalError
from probattn.functional import padding
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.non_finite import find_non_finite
from probattn.inference.prediction.aggregate import (
    join,
    summarise,
)
from probattn.inference.prediction.result import Prediction

Likelihoods = Callable[[Tensor, Tensor | None], Iterable[tuple[slice, dist.TorchDistribution]]]
"""Inputs and mask of a batch → its chunks with their likelihoods, of batch shape ``(S, chunk)``, or
``(chunk,)`` if nothing was sampled."""


def predict_batches(
    data: Tensor | Iterable,
    likelihoods: Likelihoods,
    modules: Mapping[str, nn.Module],
    **options: Any,
) -> Prediction:
    """Average the likelihoods of all batches over posterior samples, with the batch's number in
    errors.

    Args:
        data: as for :func:`predict`.
        likelihoods: yields chunks of a batch ``(x, mask)`` with their likelihoods, of batch shape
            ``(S, chunk)``, or ``(chunk,)`` if nothing was sampled.
        modules: by name, where the source of a NaN is looked for.
        options: of :func:`~probattn.inference.prediction.aggregate.summarise`.

    Raises:
        ValueError, NumericalError: as for :func:`predict`.
    """
    batches = enumerate(map(unpack_batch, iterate_batches(data)))
    parts = [
        predict_batch(number, batch, likelihoods, modules, **options) for number, batch in batches
    ]
    return join(parts)


def predict_batch(
    number: int,
    batch: tuple[Tensor, Tensor | None, Tensor | None],
    likelihoods: Likelihoods,
    modules: Mapping[str, nn.Module],
    **options: Any,
) -> Prediction:
    """Average the likelihoods of one batch over posterior samples; errors get the batch's number,
    and the source of a NaN or Inf.

    Args:
        number: of the batch, for errors.
        batch: inputs, labels or None, mask or None.
        likelihoods, modules, options: as for :func:`predict_batches`.
    """
    x, y, mask = batch
    if x.is_floating_point() and not padding.zeroed(x, mask).isfinite().all():
        raise ValueError(f"NaN or Inf in the inputs of batch {number}")
    parts = []
    try:
        for rows, likelihood in likelihoods(x, mask):
            if len(likelihood.batch_shape) > 2:
                actual = f"batch shape {tuple(likelihood.batch_shape)}"
                raise ValueError(f"the likelihood has {actual}, which must be (samples, examples)")
            labels = None if y is None else y[rows]
            parts.append(summarise(likelihood, labels, x.device, **options))
    except (ValueError, NumericalError) as error:
        source = find_non_finite((), modules, ())
        error.add_note(f"batch {number}" + (f": NaN or Inf in {source}" if source else ""))
        raise
    return join(parts)
