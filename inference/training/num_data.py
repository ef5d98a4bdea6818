"""Size of the training set that a loader stands for, against which a model's ``num_data`` is
checked."""

from collections.abc import Iterable, Sized

from torch import nn

from probattn.inference.programs import attribute


def check_num_data(model: nn.Module, train: Iterable) -> None:
    """Refuse a wrong ``num_data``, which would silently weight the KL wrongly.

    The right size is the loader's attribute ``num_data``. Without one, a ``DataLoader`` has that of
    its sampler and that of its data set: epochs may repeat examples, or leave out some. Other
    loaders have no known size.

    Raises:
        ValueError: as described.
    """
    num_data, batches = attribute(model, "num_data"), getattr(train, "batch_sampler", None)
    sources = (
        ()
        if batches is None
        else (getattr(batches, "sampler", None), getattr(train, "dataset", None))
    )
    sizes = {len(source) for source in sources if isinstance(source, Sized)}
    if hasattr(train, "num_data"):
        sizes = {train.num_data}
    if sizes and num_data not in sizes:
        raise ValueError(
            f"the model has num_data={num_data}, and the training loader {min(sizes)} examples. "
            "The KL would count "
            f"{min(sizes) / num_data:.3g} times: build the model with that number, or set num_data "
            "of the loader"
        )
