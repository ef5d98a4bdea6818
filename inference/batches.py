"""Batches of data in the forms that loaders yield, as ``(x, y, mask)`` of tensors."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
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
            raise ValueError(
                f"training needs labels, and this batch has none: yield (x, y), (x, y, mask), or a dictionary with one "
                f"of {', '.join(LABELS)}"
            )
        return (self.x, self.y) if self.mask is None else (self.x, self.y, self.mask)


def unpack_batch(batch: Any) -> Batch:
    """Return the tensors of a batch.

    A batch is a tensor or NumPy array of inputs; a tuple or list ``(x,)``, ``(x, y)`` or ``(x, y, mask)``, of which x
    may be a mapping; or a mapping, named tuple or data class with one of :data:`INPUTS`, at most one of :data:`LABELS`,
    and at most one of :data:`MASKS` or :data:`PADDING_MASKS`. Other fields are not used (see :func:`select_fields`
    for other names). Masks of integers become boolean; NumPy's float64 becomes PyTorch's default dtype.

    Raises:
        TypeError: an object of another type.
        ValueError: an empty batch; labels or a mask of another length than the inputs; fields that are missing or
            ambiguous; a single label in place of a batch; masks of floats; more than three entries; segments
            (``token_type_ids`` other than 0), which no network here takes.
    """
    values = _named_fields(batch)
    if values is not None:
        return _checked(_from_fields(values))
    if _is_array(batch):
        return _checked(Batch(_tensor(batch, "x")))
    if not isinstance(batch, tuple | list) or not batch or batch[0] is None:
        raise TypeError(f"a batch is a tensor, (x, y), (x, y, mask) or a mapping of tensors, got {_described(batch)}")
    if len(batch) > 3:
        raise ValueError(
            f"a batch has at most three entries, (x, y, mask), got {len(batch)}: yield a dictionary, or select entries "
            "in the loader's collate_fn"
        )
    x, y, mask = (*batch, None, None)[:3]
    values = _named_fields(x)
    if values is None:
        return _checked(Batch(_tensor(x, "x"), _optional(y, "y"), _boolean(mask, "mask")))
    inputs = _from_fields(values)
    if (inputs.y is not None and y is not None) or mask is not None:
        raise ValueError("labels or masks are both in the batch's dictionary and beside it: give them once")
    return _checked(inputs if y is None else inputs._replace(y=_optional(y, "y")))


def _checked(batch: Batch) -> Batch:
    """Return the batch if it has one label and one row of the mask for each of one or more examples."""
    if not batch.x.dim() or not len(batch.x):
        raise ValueError(f"the batch is empty, or no batch: its inputs have shape {tuple(batch.x.shape)}")
    for name, value in (("labels", batch.y), ("mask", batch.mask)):
        if value is not None and value.shape[:1] != batch.x.shape[:1]:
            rows = len(value) if value.dim() else "no"
            raise ValueError(f"the batch has {len(batch.x)} inputs and {rows} rows of {name}: one for each input")
    return batch


def iterate_batches(data: Any) -> Iterable:
    """Return the batches of data that are predicted: those of a loader, a single batch, or those of a data set.

    A tensor, an array, a mapping, and a named tuple or data class with known fields are single batches. A data set is
    read in its order, in batches of :data:`PREDICTION_BATCH_SIZE`. All else is iterated over, also a tuple of arrays,
    such as ``x.split(256)``.

    Raises:
        TypeError: an object that cannot be iterated over; a tuple ``(x, y)``, whose entries are no batches.
    """
    if _is_single_batch(data):
        return (data,)
    if isinstance(data, tuple) and len({(value.ndim, str(value.dtype)) for value in data if _is_array(value)}) > 1:
        raise TypeError(
            "data is a tuple of different arrays and must be an iterable of batches: pass [(x, y)] for a single batch "
            "with labels"
        )
    if _is_dataset(data):
        return DataLoader(data, batch_size=PREDICTION_BATCH_SIZE)
    if isinstance(data, str | bytes) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise TypeError(f"data must be a tensor, a batch or an iterable of batches, got {_described(data)}")
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
    if not (_is_dataset(data) or _is_single_batch(data) or arrays or not hasattr(data, "__len__")):
        return
    dataset = name if _is_dataset(data) else "TensorDataset(x, y)"
    raise TypeError(
        f"{name} must be a loader of batches with a length, such as DataLoader({dataset}, batch_size=64, shuffle=True, "
        f"generator=torch.Generator()), got {_described(data)}"
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
        ValueError: both kinds of mask; a batch without one of the fields, when it is read.
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


def _select(batch: Any, *, x: str, y: str | None, mask: str | None, padding_mask: str | None) -> Batch:
    """Return the tensors of the named fields."""
    values = _fields(batch) or {}
    missing = [name for name in (x, y, mask, padding_mask) if name is not None and name not in values]
    if missing:
        raise ValueError(f"the batch has no field {', '.join(missing)}, only {', '.join(map(str, values)) or 'none'}")
    real = _boolean(values[mask], mask) if mask else None
    if padding_mask and (is_padding := _boolean(values[padding_mask], padding_mask)) is not None:
        real = ~is_padding
    return Batch(_tensor(values[x], x), _optional(values[y], y) if y else None, real)


def _from_fields(values: Mapping[str, Any]) -> Batch:
    """Return the tensors of the known fields."""
    x, y, mask = (_one_of(values, names) for names in (INPUTS, LABELS, (*MASKS, *PADDING_MASKS)))
    if x is None:
        raise ValueError(
            f"the batch has the fields {', '.join(map(str, values)) or 'none'}, and none is known as inputs "
            f"({', '.join(INPUTS)}): name them, e.g. select_fields(loader, x=..., y=...)"
        )
    segments = values.get("token_type_ids")
    if segments is not None and bool(torch.as_tensor(segments).any()):
        raise ValueError(
            "token_type_ids other than 0 mark a second segment, which the network would not see: tokenise with "
            "return_token_type_ids=False, or leave them out with select_fields"
        )
    is_padding = mask in PADDING_MASKS
    return _select(values, x=x, y=y, mask=None if is_padding else mask, padding_mask=mask if is_padding else None)


def _one_of(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the one of these names that the fields have, or None."""
    present = [name for name in names if values.get(name) is not None]
    if len(present) > 1:
        raise ValueError(
            f"the batch has {' and '.join(present)}, of which one is used: say which, e.g. "
            "select_fields(loader, x=..., y=..., mask=...)"
        )
    return present[0] if present else None


def _named_fields(batch: Any) -> Mapping[str, Any] | None:
    """Return the fields of a mapping or data class, and of a named tuple with known names; None for other objects."""
    values = _fields(batch)
    return None if isinstance(batch, tuple) and not set(INPUTS) & set(values or ()) else values


def _fields(batch: Any) -> Mapping[str, Any] | None:
    if isinstance(batch, Mapping):
        return batch
    if is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in fields(batch)}
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


def _tensor(value: Any, name: str | None) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        dtype = torch.get_default_dtype() if value.dtype == np.float64 else None
        return torch.as_tensor(value, dtype=dtype)
    raise TypeError(f"{name} of the batch must be a tensor or a NumPy array of numbers, got {_described(value)}")


def _optional(value: Any, name: str | None) -> Tensor | None:
    return None if value is None else _tensor(value, name)


def _boolean(value: Any, name: str | None) -> Tensor | None:
    mask = _optional(value, name)
    if mask is None or mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point() or mask.is_complex():
        raise ValueError(f"{name} of the batch must be boolean or of integers, 0 or 1, got {mask.dtype}")
    return mask != 0


def _described(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if _is_array(value) else ""
    dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray) else ""
    return f"an object of type {type(value).__name__}{shape}{dtype}"
