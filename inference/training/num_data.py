"""Size of the training set that a loader stands for, against which a model's ``num_data`` is checked."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.data import BatchSampler

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
        raise ValueError("fit needs the size of the training set: set model.num_data, or use models.Supervised")
    sizes = training_sizes(train)
    if sizes and num_data not in sizes:
        listed = " or ".join(map(str, sizes))
        raise ValueError(
            f"the model was built with num_data={num_data}, but the training loader has {listed} examples: the KL "
            f"would count {sizes[0] / num_data:.3g} times; build the model with num_data={sizes[0]}, or give the "
            "loader an attribute num_data, the number of examples that it draws from"
        )


def training_sizes(loader: Any) -> list[int]:
    """Return the possible sizes of the training set of a loader, the usual one first; none if they are unknown.

    The size is what the loader's attribute ``num_data`` says, else the number of examples in an epoch, or that of the
    data set: epochs may repeat examples, or leave out some.
    """
    if getattr(loader, "num_data", None) is not None:
        return [loader.num_data]
    batches, sampler = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    if batches is None and getattr(loader, "batch_size", None) is None:
        return []  # the data set's items are batches, or it is a list of batches, of which some may repeat
    if batches is not None:
        sampler = getattr(batches, "sampler", None)
    data = _length(getattr(loader, "dataset", None))
    examples = _length(sampler) or data
    sizes = [min(examples, data) if examples and data else examples, examples, data]
    if isinstance(batches, BatchSampler) and batches.drop_last and examples:
        sizes.append(examples - examples % batches.batch_size)
    return list(dict.fromkeys(size for size in sizes if size))


def _length(thing: Any) -> int | None:
    return len(thing) if hasattr(thing, "__len__") else None
