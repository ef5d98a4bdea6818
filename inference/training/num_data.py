"""Size of the training set that a loader stands for, against which a model's ``num_data`` is checked."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

from probattn.inference.distributed import random_state
from probattn.inference.programs import attribute


def check_num_data(model: nn.Module, train: Iterable) -> None:
    """Refuse a loader without batches, and a wrong ``num_data``, which would silently weight the KL wrongly.

    Raises:
        ValueError: as described.
    """
    if len(train) == 0:
        raise ValueError("the training loader yields no batch")
    num_data = attribute(model, "num_data")
    if num_data is None:
        raise ValueError(
            "fit needs the size of the training set: set model.num_data, or use probattn.models.Supervised"
        )
    sizes = training_sizes(train)
    if sizes and num_data not in sizes:
        size = sizes[0]
        also = f" (or {sizes[1]})" if len(sizes) > 1 else ""
        raise ValueError(
            f"the model was built with num_data={num_data}, but the training loader has {size} examples{also} in an "
            f"epoch: the KL would count {size / num_data:.3g} times; build the model with num_data={size}, or, if the "
            "loader draws from more examples than one epoch has, tell their number in its attribute num_data"
        )


def training_sizes(loader: Any) -> list[int]:
    """Return the possible sizes of the training set of a loader, the usual one first; none if they are unknown.

    The size is the number of examples in an epoch: what the loader's attribute ``num_data`` says, else what its sampler
    or batch sampler yields, else the length of its data set; that of a list of batches is not known, since it may hold
    a batch several times. Two sizes are possible where epochs differ or repeat examples: with ``drop_last``, and for
    samplers that draw with replacement or another number than there is. A batch sampler of a class of its own is
    iterated over once, and its generators are restored.
    """
    stated = getattr(loader, "num_data", None)
    if stated is not None:
        return [stated]
    batches, sampler = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    if batches is None and isinstance(sampler, BatchSampler):
        batches = sampler  # as in DataLoader(…, sampler=BatchSampler(…), batch_size=None)
    elif batches is None and sampler is not None and getattr(loader, "batch_size", None) is None:
        return []  # the data set's items are batches
    data = _length(getattr(loader, "dataset", None))
    if type(batches) is BatchSampler:
        sizes = _sizes_of_sampler(batches.sampler, data)
        size = sizes[0] if sizes else 0
        return _unique(*sizes, size - size % batches.batch_size if batches.drop_last else None)
    if batches is not None:
        with random_state.preserved(loader):
            indices = [index for batch in batches for index in batch]
        return _unique(len(set(indices)), len(indices), data if getattr(batches, "drop_last", False) else None)
    return _unique(data)


def _sizes_of_sampler(sampler: Any, data: int | None) -> list[int]:
    if isinstance(sampler, RandomSampler):
        return _unique(data, sampler.num_samples)
    if isinstance(sampler, WeightedRandomSampler):
        return _unique(int((sampler.weights > 0).sum()), sampler.num_samples)
    drawn = _length(sampler)
    if drawn is None or data is None:
        return _unique(data, drawn)
    return _unique(min(drawn, data), drawn)


def _length(thing: Any) -> int | None:
    return len(thing) if hasattr(thing, "__len__") else None


def _unique(*sizes: int | None) -> list[int]:
    """Return the sizes that are known and not 0, without repetitions."""
    return list(dict.fromkeys(size for size in sizes if size))
