"""Data-parallel prediction over the ranks of torchrun."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.distributed import broadcast_result, gather_results, seed_per_rank, world
from probattn.inference.prediction.aggregate import join
from probattn.inference.prediction.latents import arguments, draw_latents
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction
from probattn.threads import one_thread_at_a_time


@one_thread_at_a_time
def predict_sharded(
    model: nn.Module,
    guide: nn.Module | None,
    data: Tensor | Iterable,
    **options: Any,
) -> Prediction:
    """Run :func:`~probattn.inference.predict` with the batches distributed over all ranks.

    Every rank iterates over the whole loader, predicts a contiguous range of its batches, and
    returns the whole prediction. All ranks use the global latent variables that rank 0 has sampled,
    so the result is that of one process with rank 0's random state, bit for bit if the number of
    threads is the same. Local latent variables are sampled on each rank.

    Args:
        model, guide: as for ``predict``.
        data: as for ``predict``; an iterable must have a length.
        options: ``num_samples``, which is required, and ``keep_draws``, as for ``predict``.

    Raises:
        ValueError, NumericalError: as for ``predict``, if this rank failed.
    """
    rank, size = world()
    batches: Any = iterate_batches(data)
    if size == 1 or not len(batches):
        return predict(model, guide, batches, **options)
    start = rank * len(batches) // size
    stop = (rank + 1) * len(batches) // size
    stream = iter(batches)
    first = next(stream)
    x, _, mask = unpack_batch(first)
    inputs = arguments(model, x, mask)
    with torch.no_grad():
        latents = draw_latents(model, guide, inputs, num_samples=options["num_samples"])
    sites = list(chain.from_iterable(trace.nodes.values() for trace in latents.traces))
    values = broadcast_result(lambda: [site["value"] for site in sites])
    for site, value in zip(sites, values, strict=True):
        site["value"] = value
    seed_per_rank()

    def predict_range() -> Prediction | None:
        """Predict this rank's batches; reading the others advances the loader's generator as on
        other ranks."""
        numbered = enumerate(chain([first], stream))
        range_of_rank = (batch for number, batch in numbered if start <= number < stop)
        if start == stop:
            return next(range_of_rank, None)
        try:
            return predict(model, guide, range_of_rank, latents=latents, **options)
        except Exception as error:
            error.add_note(f"(on rank {rank}, which counts batches from {start} on)")
            raise

    predictions = gather_results(predict_range)
    return join([prediction for prediction in predictions if prediction is not None])
