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
        ValueError: fields that are missing or ambiguous; a single label in place of a batch; masks of floats; more than
            three entries; segments (``token_type_ids`` other than 0), which no network here takes.
    """
    named = _named_fields(batch)
    if named is not None:
        return _from_fields(named)
    if _is_array(batch):
        return Batch(_tensor(batch, "x"))
    if not isinstance(batch, tuple | list) or not batch or batch[0] is None:
        raise TypeError(f"a batch is a tensor, (x, y), (x, y, mask) or a mapping of tensors, got {_described(batch)}")
    if len(batch) > 3:
        raise ValueError(
            f"a batch has at most three entries, (x, y, mask), got {len(batch)}: yield a dictionary, or select entries "
            "in the loader's collate_fn"
        )
    x, y, mask = (*batch, None, None)[:3]
    inner = _named_fields(x)
    if inner is None:
        return Batch(_tensor(x, "x"), _labels(y, "y"), _boolean(mask, "mask"))
    found = _from_fields(inner)
    if (found.y is not None and y is not None) or mask is not None:
        raise ValueError("labels or masks are both in the batch's dictionary and beside it: give them once")
    return found._replace(y=_labels(y, "y") if found.y is None else found.y)


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
    if isinstance(data, tuple) and len({(each.ndim, str(each.dtype)) for each in data if _is_array(each)}) > 1:
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
    if _is_dataset(data):
        raise TypeError(
            f"{name} is a data set ({type(data).__name__}) and must be a loader of batches: "
            f"DataLoader({name}, batch_size=64, shuffle=True, generator=torch.Generator())"
        )
    if _is_single_batch(data) or (isinstance(data, tuple) and any(map(_is_array, data))):
        raise TypeError(
            f"{name} is {_described(data)} and must be a loader of batches: DataLoader(TensorDataset(x, y), "
            "batch_size=64, shuffle=True, generator=torch.Generator()), with tensors such as torch.from_numpy(x)"
        )
    if not hasattr(data, "__len__") or isinstance(data, str | bytes):
        raise TypeError(
            f"{name} must be an iterable of batches with a length, such as a DataLoader or a list, got "
            f"{_described(data)}"
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
        loader: a ``DataLoader``, of which a copy with another ``collate_fn`` is returned, or a list of batches.
        x, y: names of inputs and labels in the mappings, named tuples or data classes that it yields.
        mask: name of a mask that is True at real tokens.
        padding_mask: name of a mask that is True at padding.

    Raises:
        TypeError: another kind of loader.
        ValueError: both kinds of mask; a batch without one of the fields, when it is read.
    """
    if mask is not None and padding_mask is not None:
        raise ValueError("give mask (True at real tokens) or padding_mask (True at padding), not both")
    select = partial(_select, x=x, y=y, mask=mask, padding_mask=padding_mask)
    if isinstance(loader, DataLoader):
        selected = copy.copy(loader)
        selected.collate_fn = partial(_collate, loader.collate_fn, select)
        return selected
    if isinstance(loader, list | tuple):
        return [select(batch) for batch in loader]
    raise TypeError(f"select_fields takes a DataLoader or a list of batches, got {_described(loader)}")


def _collate(collate: Callable[[list], Any], select: Callable[[Any], Batch], examples: list) -> Batch:
    return select(collate(examples))


def _select(batch: Any, *, x: str, y: str | None, mask: str | None, padding_mask: str | None) -> Batch:
    values = _fields(batch) or {}
    missing = [name for name in (x, y, mask, padding_mask) if name is not None and name not in values]
    if missing:
        raise ValueError(f"the batch has no field {', '.join(missing)}, only {', '.join(map(str, values)) or 'none'}")
    given = _boolean(values[mask], mask) if mask else None
    padding = _boolean(values[padding_mask], padding_mask) if padding_mask else None
    return Batch(_tensor(values[x], x), _labels(values[y], y) if y else None, given if padding is None else ~padding)


def _from_fields(values: Mapping[str, Any]) -> Batch:
    x, y = _one_of(values, INPUTS), _one_of(values, LABELS)
    mask = _one_of(values, (*MASKS, *PADDING_MASKS))
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
    real = None if mask is None else _boolean(values[mask], mask)
    if real is not None and mask in PADDING_MASKS:
        real = ~real
    return Batch(_tensor(values[x], x), None if y is None else _labels(values[y], y), real)


def _one_of(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    found = [name for name in names if values.get(name) is not None]
    if len(found) > 1:
        raise ValueError(
            f"the batch has {' and '.join(found)}, of which one is used: say which, e.g. select_fields(loader, "
            f"x=..., y=..., mask=...)"
        )
    return found[0] if found else None


def _named_fields(batch: Any) -> Mapping[str, Any] | None:
    """Return the fields of a mapping or data class, and of a named tuple with known names; None for other objects."""
    values = _fields(batch)
    if isinstance(batch, tuple) and values is not None and not set(INPUTS) & set(values):
        return None
    return values


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
    if _is_dataset(data):
        return False
    return _is_array(data) or _named_fields(data) is not None


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


def _labels(value: Any, name: str | None) -> Tensor | None:
    labels = _optional(value, name)
    if labels is not None and not labels.dim():
        raise ValueError(
            f"{name} of the batch is a single value, {labels.item():g}, and a batch has labels (batch, ...): give a "
            "DataLoader, which makes batches of single examples"
        )
    return labels


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
