"""Batches of data in the forms that loaders yield, as ``(x, y, mask)`` of tensors."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import is_dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

INPUTS = (
    "x",
    "input_ids",
    "inputs_embeds",
    "pixel_values",
    "input_values",
    "input_features",
    "inputs",
    "image",
    "images",
    "features",
)
LABELS = ("y", "labels", "label", "target", "targets")
MASKS = ("mask", "attention_mask")
"""Names of masks that are True (or not 0) at real tokens, as Hugging Face's tokenizers return
them."""
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask")
"""Names of masks that are True (or not 0) at padding, as ``nn.MultiheadAttention`` takes them; they
are inverted."""
NETWORK_INPUTS = ("_ids", "_mask", "_embeds", "_states", "_values", "bbox", "langs")
"""Ends of the names of further inputs of networks, such as ``position_ids`` and ``head_mask``."""
LENGTHS = ("length", "lengths", "len", "lens")
"""Ends of the names of numbers of real tokens, which say what a mask says."""
PREDICTION_BATCH_SIZE = 256
"""Batch size of a data set that is predicted without a loader."""


class Loader(Iterable, Sized, Protocol):
    """Sized iterable of batches, such as a ``DataLoader`` or a list."""


class Batch(NamedTuple):
    """Tensors of a batch.

    Args:
        x: inputs ``(batch, ...)``.
        y: labels ``(batch, ...)``, or None.
        mask: boolean ``(batch, tokens)``, True at real tokens, or None.
    """

    x: Tensor
    y: Tensor | None = None
    mask: Tensor | None = None

    def arguments(self) -> tuple[Tensor, ...]:
        """Return the arguments of a model in training, ``(x, y)`` or ``(x, y, mask)``.

        Raises:
            ValueError: a batch without labels.
        """
        if self.y is None:
            raise ValueError(
                "training needs labels: yield (x, y), (x, y, mask), or a dictionary with one of "
                f"{LABELS}"
            )
        return (self.x, self.y) if self.mask is None else (self.x, self.y, self.mask)


def unpack_batch(batch: Any) -> Batch:
    """Return the tensors of a batch.

    A batch is a tensor or NumPy array of inputs; a tuple or list ``(x,)``, ``(x, y)`` or
    ``(x, y, mask)``; or a mapping, named tuple or data class with one of :data:`INPUTS`, at most
    one of :data:`LABELS`, and at most one of :data:`MASKS` or :data:`PADDING_MASKS`. Other fields
    are not used (see :func:`select_fields` for other names); those of :data:`NETWORK_INPUTS` are
    refused, and without a mask those of :data:`LENGTHS`: a network gets ``(x)`` or ``(x, mask)``.
    Masks of integers become boolean. NumPy's float64 becomes PyTorch's default dtype.

    Raises:
        TypeError: an object of another type, more than three entries, or entries that are no
            arrays.
        ValueError: an empty batch; labels or a mask of another length than the inputs; fields that
            are missing or ambiguous; masks of floats; further inputs that would change what a
            network returns, such as ``token_type_ids`` other than 0, ``position_ids`` other than
            0, 1, … and ``lengths`` below the number of tokens, which no network here takes.
    """
    fields = _fields(batch)
    if fields is None:
        if not isinstance(batch, tuple | list) or len(batch) > 3:
            raise TypeError(
                "a batch is a tensor, (x, y), (x, y, mask) or a mapping of tensors, not "
                f"{type(batch)}"
            )
        fields = dict(zip(Batch._fields, batch, strict=False))
    x = _one_of(fields, INPUTS)
    y = _one_of(fields, LABELS)
    mask = _one_of(fields, MASKS + PADDING_MASKS)
    if x is None:
        raise ValueError(
            f"no field of the batch is known as inputs, which are {INPUTS}: use select_fields"
        )
    if not len(x):
        raise ValueError(f"the batch is empty: its inputs have shape {tuple(x.shape)}")
    for name, value in (("labels", y), ("mask", mask)):
        if value is not None and value.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"the batch has {len(x)} inputs and {name} of shape {tuple(value.shape)}: one for "
                "each"
            )
    if mask is not None:
        if mask.is_floating_point():
            raise ValueError(
                f"the mask of the batch must be boolean or of integers, 0 or 1, got {mask.dtype}"
            )
        is_padding = _one_of(fields, PADDING_MASKS) is not None
        mask = (mask != 0) != is_padding
    _check_further(fields, x, mask)
    return Batch(x, y, mask)


def iterate_batches(data: Any) -> Iterable:
    """Return the batches of data that are predicted: those of a loader, a single batch, or those of
    a data set.

    A tensor, array, mapping, named tuple or data class is a single batch. A data set is read in its
    order, in batches of :data:`PREDICTION_BATCH_SIZE`. All else is iterated over, also a tuple of
    arrays, such as ``x.split(256)``.

    Raises:
        TypeError: a tuple ``(x, y)``, whose entries are no batches.
    """
    if _is_dataset(data):
        return DataLoader(data, batch_size=PREDICTION_BATCH_SIZE)
    if _fields(data) is not None:
        return (data,)
    if isinstance(data, tuple):
        kinds = {(value.ndim, str(value.dtype)) for value in data if _is_array(value)}
        if len(kinds) > 1:
            raise TypeError(
                "data is a tuple of different arrays: pass [(x, y)] for a single batch with labels"
            )
    return data


def check_loader(data: Any, name: str, *, sized: bool = False) -> None:
    """Refuse what is no loader: a data set, whose single examples could pass for batches, or what
    is read only once.

    Args:
        data: the loader.
        name: name of the argument.
        sized: it must say how many batches it has.

    Raises:
        TypeError: says which loader to build.
        ValueError: there are no batches.
    """
    example = "DataLoader(data, batch_size=64, shuffle=True)"
    advice = f"{name} must be a loader of batches, such as {example}"
    if _is_dataset(data):
        raise TypeError(advice)
    if not isinstance(data, Iterable) or iter(data) is data:
        raise TypeError(f"{advice} or a list, which can be read again")
    try:
        number = len(cast(Sized, data))
    except TypeError as error:
        if sized:
            raise TypeError(f"{advice} or a list, which has a length") from error
        return
    if not number:
        raise ValueError(
            f"{name} has no batches: it has no examples, or fewer than a batch and drop_last=True"
        )


def select_fields(
    loader: DataLoader,
    *,
    x: str,
    y: str | None = None,
    mask: str | None = None,
    padding_mask: str | None = None,
) -> DataLoader:
    """Return a copy of a loader that yields the batches ``(x, y, mask)`` of fields with other
    names.

    >>> loader = DataLoader([{"pixels": torch.zeros(3), "digit": 1}], batch_size=1)
    >>> x, y, *_ = next(iter(select_fields(loader, x="pixels", y="digit")))
    >>> [tuple(tensor.shape) for tensor in (x, y)]
    [(1, 3), (1,)]

    Args:
        loader: yields mappings, named tuples or data classes.
        x, y: names of inputs and labels.
        mask: name of a mask that is True at real tokens.
        padding_mask: name of a mask that is True at padding.

    Raises:
        KeyError: a batch without one of the fields, when it is read.
        ValueError: both kinds of mask, then.
    """
    names = {"x": x, "y": y, "mask": mask, "key_padding_mask": padding_mask}
    selected = copy.copy(loader)
    selected.collate_fn = partial(_collate, loader.collate_fn, names)
    return selected


def _collate(collate: Callable[[list], Any], names: dict[str, str | None], examples: list) -> Batch:
    fields = _fields(collate(examples)) or {}
    return unpack_batch({known: fields[name] for known, name in names.items() if name is not None})


def _one_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> Tensor | None:
    """Return the field that has one of these names, or None."""
    present = [name for name in names if fields.get(name) is not None]
    if len(present) > 1:
        raise ValueError(
            f"the batch has {' and '.join(present)}, of which one is used: say which by "
            "select_fields"
        )
    if not present:
        return None
    value = fields[present[0]]
    if not _is_array(value):
        raise TypeError(
            f"{present[0]} of the batch must be a tensor or a NumPy array, not {type(value)}"
        )
    dtype = torch.get_default_dtype() if value.dtype == np.float64 else None
    return torch.as_tensor(value, dtype=dtype)


def _check_further(fields: Mapping[str, Any], x: Tensor, mask: Tensor | None) -> None:
    """Refuse fields that a network would need, and does not get."""
    for name, value in fields.items():
        if isinstance(value, list | tuple) and all(isinstance(number, int) for number in value):
            value = torch.as_tensor(value)
        if name in INPUTS + LABELS + MASKS + PADDING_MASKS or not _is_array(value):
            continue
        if _is_needed(name, value) or (mask is None and _are_lengths(name, value, x)):
            kinds = "a second segment, positions, a mask, lengths"
            advice = "make a mask of lengths, or leave it out by select_fields"
            raise ValueError(f"the network would not see {name} ({kinds}): {advice}")


def _are_lengths(name: str, value: Any, x: Tensor) -> bool:
    """Return True for numbers of tokens of examples, some of which are padded."""
    if not name.endswith(LENGTHS) or "int" not in str(value.dtype):
        return False
    tokens = x.shape[1] if x.dim() > 1 else 0
    return bool(value.max() <= tokens and value.min() < tokens)


def _is_needed(name: str, value: Any) -> bool:
    """Return True for a further input of a network, unless it is its default: segment 0, no mask,
    …"""
    if not name.endswith(NETWORK_INPUTS) or name == "special_tokens_mask":
        return False
    if value.ndim < 2 and name != "head_mask":  # such as the numbers of the examples
        return False
    defaults = {"token_type_ids": torch.tensor(0), "position_ids": torch.arange(value.shape[-1])}
    default = defaults.get(name, torch.tensor(1))
    return bool((torch.as_tensor(value).cpu() != default).any())


def _fields(batch: Any) -> Mapping[str, Any] | None:
    """Return the fields of a mapping, named tuple or data class, and an array as ``x``; None for
    other objects."""
    if isinstance(batch, Mapping):
        return batch
    if is_dataclass(batch):
        return vars(batch)
    if hasattr(batch, "_asdict"):
        return batch._asdict()
    return {"x": batch} if _is_array(batch) else None


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_dataset(data: Any) -> bool:
    """Return True for PyTorch's data sets, and those of Hugging Face (``with_format``)."""
    return isinstance(data, Dataset) or hasattr(type(data), "with_format")
