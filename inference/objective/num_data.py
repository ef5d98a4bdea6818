"""Number N of training examples by which a model weighs its KL, checked against a loader."""

from collections.abc import Iterable, Sized
from typing import Any

from torch import nn

from probattn.guides import Program, module_of


def attribute(model: Program, name: str) -> Any:
    """Return an attribute of a model, such as ``num_data``, or that of the first module in it that
    has one, else None."""
    for module in module_of(model).modules():
        if hasattr(module, name):
            return getattr(module, name)
    return None


def check_num_data(model: nn.Module, train: Iterable) -> None:
    """Refuse a wrong ``num_data``, which would silently weight the KL wrongly.

    The right size is the loader's attribute ``num_data``. Without one, a ``DataLoader`` has that of
    its sampler and that of its data set: epochs may repeat examples, or leave out some. Other
    loaders have no known size.

    Raises:
        ValueError: as described.
    """
    num_data = attribute(model, "num_data")
    batches = getattr(train, "batch_sampler", None)
    sizes = set()
    if hasattr(train, "num_data"):
        sizes = {train.num_data}
    elif batches is not None:
        sources = (getattr(batches, "sampler", None), getattr(train, "dataset", None))
        sizes = {len(source) for source in sources if isinstance(source, Sized)}
    if sizes and num_data not in sizes:
        examples = min(sizes)
        raise ValueError(
            f"the model has num_data={num_data}, and the training loader {examples} examples. "
            f"The KL would count {examples / num_data:.3g} times: build the model with that "
            "number, or set num_data of the loader"
        )
