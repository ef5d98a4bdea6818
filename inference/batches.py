"""Batches of data in the forms that loaders yield, as ``(x, y, mask)`` of tensors."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

INPUTS = ("x", "input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features", "inputs", "image",
          "images", "features")  # fmt: skip
LABELS = ("y", "labels", "label", "target", "targets")
MASKS = ("mask", "attention_mask")
"""Names of masks that are True (or not 0) at real tokens, as Hugging Face's tokenizers return them."""
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask")
"""Names of masks that are True (or not 0) at padding, as ``nn.MultiheadAttention`` takes them; they are inverted."""
PREDICTION_BATCH_SIZE = 256
"""Batch size of a data set that is predicted without a loader."""


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
            raise ValueError(f"training needs labels: yield (x, y), (x, y, mask), or a dictionary with one of {LABELS}")
        return (self.x, self.y) if self.mask is None else (self.x, self.y, self.mask)


def unpack_batch(batch: Any) -> Batch:
    """Return the tensors of a batch.

    A batch is a tensor or NumPy array of inputs; a tuple or list ``(x,)``, ``(x, y)`` or ``(x, y, mask)``, of which x
    may be a mapping; or a mapping, named tuple or data class with one of :data:`INPUTS`, at most one of :data:`LABELS`,
    and at most one of :data:`MASKS` or :data:`PADDING_MASKS`. Other fields are not used (see :func:`select_fields`
    for other names). Masks of integers become boolean; NumPy's float64 becomes PyTorch's default dtype.

    Raises:
        TypeError: an object of another type, or more than three entries.
        ValueError: an empty batch; labels or a mask of another length than the inputs; fields that are missing or
            ambiguous; a single label in place of a batch; masks of floats; segments (``token_type_ids`` other than 0),
            which no network here takes.
    """
    entries = (batch,) if _is_array(batch) else batch
    values = _named_fields(entries)
    if values is None:
        if not isinstance(entries, tuple | list) or not 1 <= len(entries) <= 3 or entries[0] is None:
            kind = type(batch).__name__
            raise TypeError(f"a batch is a tensor, (x, y), (x, y, mask) or a mapping of tensors, got a {kind}")
        values = dict(zip(Batch._fields, entries, strict=False))
        if _named_fields(entries[0]) is not None:
            inside = unpack_batch(values.pop("x"))._asdict()
            if any(value is not None and inside[name] is not None for name, value in values.items()):
                raise ValueError("labels or masks are both in the batch's dictionary and beside it: give them once")
            values = inside | {name: value for name, value in values.items() if value is not None}
    x, y, mask = (_one_of(values, names) for names in (INPUTS, LABELS, (*MASKS, *PADDING_MASKS)))
    if x is None:
        raise ValueError(
            f"no field of the batch is known as inputs, which are {INPUTS}: use select_fields(loader, x=..., y=...)"
        )
    segments = values.get("token_type_ids")
    if segments is not None and bool(torch.as_tensor(segments).any()):
        raise ValueError(
            "token_type_ids other than 0 mark a second segment, which the network would not see: tokenise without them"
        )
    if mask in PADDING_MASKS:
        return _select(values, x=x, y=y, padding_mask=mask)
    return _select(values, x=x, y=y, mask=mask)


def iterate_batches(data: Any) -> Iterable:
    """Return the batches of data that are predicted: those of a loader, a single batch, or those of a data set.

    A tensor, an array, a mapping, and a named tuple or data class with known fields are single batches. A data set is
    read in its order, in batches of :data:`PREDICTION_BATCH_SIZE`. All else is iterated over, also a tuple of arrays,
    such as ``x.split(256)``.

    Raises:
        TypeError: a tuple ``(x, y)``, whose entries are no batches.
    """
    if _is_single_batch(data):
        return (data,)
    if isinstance(data, tuple) and len({(value.ndim, str(value.dtype)) for value in data if _is_array(value)}) > 1:
        raise TypeError("data is a tuple of different arrays: pass [(x, y)] for a single batch with labels")
    if _is_dataset(data):
        return DataLoader(data, batch_size=PREDICTION_BATCH_SIZE)
    return data


def check_loader(data: Any, name: str) -> None:
    """Refuse training data that are no sized iterable of batches: arrays, single batches, data sets, generators.

    Args:
        data: the data.
        name: name of the argument, for messages.

    Raises:
        TypeError: says which loader to build.
    """
    arrays = isinstance(data, tuple) and any(map(_is_array, data))
    if _is_dataset(data) or _is_single_batch(data) or arrays or not hasattr(data, "__len__"):
        example = "DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)"
        raise TypeError(
            f"{name} must be a loader of batches with a length, such as {example}, got {type(data).__name__}"
        )


def select_fields(
    loader: DataLoader | list | tuple, *, x: str, y: str | None = None, mask: str | None = None,
    padding_mask: str | None = None,
) -> DataLoader | list:  # fmt: skip
    """Return a loader with the batches ``(x, y, mask)`` of one whose fields have other names.

    >>> loader = [{"pixels": torch.zeros(2, 3), "digit": torch.tensor([0, 1])}]
    >>> [tuple(part.shape) for part in select_fields(loader, x="pixels", y="digit")[0][:2]]
    [(2, 3), (2,)]

    Args:
        loader: a ``DataLoader``, of which a copy with another ``collate_fn`` is returned, or an iterable of batches.
        x, y: names of inputs and labels in the mappings, named tuples or data classes that it yields.
        mask: name of a mask that is True at real tokens.
        padding_mask: name of a mask that is True at padding.

    Raises:
        ValueError: both kinds of mask.
        KeyError: a batch without one of the fields, when it is read.
    """
    if mask is not None and padding_mask is not None:
        raise ValueError("give mask (True at real tokens) or padding_mask (True at padding), not both")
    select = partial(_select, x=x, y=y, mask=mask, padding_mask=padding_mask)
    if isinstance(loader, DataLoader):
        selected = copy.copy(loader)
        selected.collate_fn = partial(_collate, loader.collate_fn, select)
        return selected
    return [select(batch) for batch in loader]


def _collate(collate: Callable[[list], Any], select: Callable[[Any], Batch], examples: list) -> Batch:
    return select(collate(examples))


def _select(
    batch: Any, *, x: str, y: str | None = None, mask: str | None = None, padding_mask: str | None = None
) -> Batch:
    """Return the tensors of the named fields, with one label and one row of the mask for each of the examples."""
    values = _fields(batch) or {}
    real = _boolean(values, padding_mask or mask)
    real = ~real if padding_mask and real is not None else real
    selected = Batch(_tensor(values, x), _tensor(values, y), real)
    if not selected.x.dim() or not len(selected.x):
        raise ValueError(f"the batch is empty, or no batch: its inputs have shape {tuple(selected.x.shape)}")
    for name, value in (("labels", selected.y), ("mask", real)):
        if value is not None and value.shape[:1] != selected.x.shape[:1]:
            rows = len(value) if value.dim() else "no"
            raise ValueError(f"the batch has {len(selected.x)} inputs and {rows} rows of {name}: one for each input")
    return selected


def _one_of(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the one of these names that the fields have, or None."""
    present = [name for name in names if values.get(name) is not None]
    if len(present) > 1:
        raise ValueError(f"the batch has {' and '.join(present)}, of which one is used: say which by select_fields")
    return present[0] if present else None


def _named_fields(batch: Any) -> Mapping[str, Any] | None:
    """Return the fields of a mapping or data class, and of a named tuple with known names; None for other objects."""
    values = _fields(batch)
    return None if isinstance(batch, tuple) and not set(INPUTS) & set(values or ()) else values


def _fields(batch: Any) -> Mapping[str, Any] | None:
    if isinstance(batch, Mapping):
        return batch
    if is_dataclass(batch) and not isinstance(batch, type):
        return vars(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_asdict"):
        return batch._asdict()
    return None


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_single_batch(data: Any) -> bool:
    return not _is_dataset(data) and (_is_array(data) or _named_fields(data) is not None)


def _is_dataset(data: Any) -> bool:
    """Return True for PyTorch's data sets, and those of Hugging Face (``with_format``)."""
    return isinstance(data, Dataset) or hasattr(type(data), "with_format")


def _tensor(values: Mapping[str, Any], name: str | None) -> Tensor | None:
    value = None if name is None else values[name]
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.as_tensor(value, dtype=torch.get_default_dtype() if value.dtype == np.float64 else None)
    kind = getattr(value, "dtype", type(value).__name__)
    raise TypeError(f"{name} of the batch must be a tensor or a NumPy array of numbers, got {kind}")


def _boolean(values: Mapping[str, Any], name: str | None) -> Tensor | None:
    mask = _tensor(values, name)
    if mask is not None and (mask.is_floating_point() or mask.is_complex()):
        raise ValueError(f"{name} of the batch must be boolean or of integers, 0 or 1, got {mask.dtype}")
    return None if mask is None else mask != 0
