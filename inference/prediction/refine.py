"""More posterior samples where they count: for the inputs with the least confidence after the
first."""

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.prediction.aggregate import AVERAGED, class_probs, join, mix, of_all
from probattn.inference.prediction.replays import Replays
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.streaming import predict_batch


def least_confident(prediction: Prediction, share: float) -> Tensor:
    """Return the rows ``(k,)`` of the k = ⌈share · n⌉ examples with the least confidence, in order.

    Raises:
        ValueError: a share outside (0, 1]; another prediction than of one class per example.
    """
    if not 0 < share <= 1:
        raise ValueError(f"refine is a share of the inputs in (0, 1], got {share}")
    confidence = class_probs(prediction).amax(1)
    number = math.ceil(share * len(confidence))
    return confidence.topk(number, largest=False).indices.sort().values


def refined(first: Prediction, there: Prediction, rows: Tensor) -> Prediction:
    """Return a prediction with that of more samples at some rows.

    Args:
        first: prediction of n examples.
        there: prediction of the examples ``rows``, in their order.
        rows: row numbers ``(k,)``.
    """
    fields: dict[str, Any] = {}
    for name in AVERAGED:
        both = of_all([first, there], name)
        fields[name] = both[0].index_copy(0, rows, both[1]) if both else None
    counts = torch.full((len(first),), first.num_samples or 1, device=rows.device)
    many = there.num_samples or 1
    return replace(
        first,
        **fields,
        draws=None,
        sample_information=None,  # would be that of another one where there are more samples
        num_samples=many,
        samples_used=counts.index_fill(0, rows, many),
    )


def batches_of(data: Tensor | Iterable, rows: Tensor) -> list[tuple]:
    """Return the examples ``rows`` of a data set, in order, in batches ``(x, y, mask)``."""
    chosen = []
    start = 0
    for x, y, mask in map(unpack_batch, iterate_batches(data)):
        of_batch = rows[(rows >= start) & (rows < start + len(x))] - start
        start += len(x)
        if len(of_batch):
            values = (None if value is None else value[of_batch] for value in (x, y, mask))
            chosen.append(tuple(values))
    return chosen


def predict_refined(
    data: Tensor | Iterable, replays: Replays, modules: Mapping[str, nn.Module], *, share: float
) -> Prediction:
    """Predict with one posterior sample, and with S where the confidence is least.

    The first sample runs on the whole of each batch, samples 2 … S on its share of least
    confidence. A network of :mod:`probattn.models` keeps the states below its first stochastic
    layer in between; in other networks, the layers below run twice for that share.

    Args:
        data, modules: as for :func:`~probattn.inference.prediction.predict.predict_batches`.
        replays: of S samples.
        share: share of each batch.

    Raises:
        ValueError: as :func:`least_confident` raises, or fewer than two samples.
    """
    parts = []
    first = None
    rest = None
    for number, (x, y, mask) in enumerate(map(unpack_batch, iterate_batches(data))):
        if first is None or rest is None:
            first, rest = replays.split(x, mask)
        with nullcontext() if rest.above is None else rest.above as states:
            once = predict_batch(number, (x, y, mask), first.likelihoods, modules, num_samples=1)
        rows = least_confident(once, share)
        inputs = x if states is None else states.inputs(x)
        chosen: Any = [None if value is None else value[rows] for value in (inputs, y, mask)]
        count = rest.num_samples
        others = predict_batch(number, chosen, rest.likelihoods, modules, num_samples=count)
        # p̄ = (p₁ + (S − 1) mean of p₂ … p_S) / S
        parts.append(refined(once, mix([once[rows], others], (1, count)), rows))
    return join(parts)
