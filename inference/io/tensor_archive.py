"""PyTorch's archives of tensors as bytes; what is read is checked before a tensor is used."""

import copy
import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def to_archive(content: Any) -> io.BytesIO:
    """Return tensors, numbers, strings, and dicts, lists and tuples of them as an archive of ``torch.save``."""
    archive = io.BytesIO()
    torch.save(map_tensors(_compact, content), archive)
    return archive


def from_archive(archive: io.BytesIO) -> Any:
    """Return the content of an archive of :func:`to_archive`, on the CPU.

    Archives of others may claim more memory than they take, by compression, by storages that are larger than their
    record, or by views of many elements on few: these are refused.

    Raises:
        Exception: it cannot be read; of any type.
    """
    with zipfile.ZipFile(archive) as members:  # torch.save compresses nothing, and torch.load checks no checksums
        if any(member.compress_type for member in members.infolist()) or members.testzip() is not None:
            raise zipfile.BadZipFile("a member is compressed or damaged")
        held = sum(member.file_size for member in members.infolist() if "/data/" in member.filename)
    archive.seek(0)
    content = torch.load(archive, map_location="cpu", weights_only=True)
    storages = {}
    for tensor in _tensors(content):
        storage = tensor.untyped_storage()
        if tensor.nbytes != storage.nbytes():
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} does not have the size of its data")
        storages[storage.data_ptr()] = storage.nbytes()
    if sum(storages.values()) != held:
        raise ValueError(f"tensors of {sum(storages.values()):,} bytes, but data of {held:,}")
    return content


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return dicts, lists and tuples with a function of each of their tensors in its place."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        mapped = copy.copy(value)  # keeps the class and the versions of modules in a state dict
        mapped.update({key: map_tensors(function, each) for key, each in value.items()})
        return mapped
    if type(value) in (list, tuple):
        return type(value)(map_tensors(function, each) for each in value)
    return value


def _compact(tensor: Tensor) -> Tensor:
    """Copy a view of another tensor, which would be stored whole; the layout in memory stays."""
    is_whole = tensor.layout is not torch.strided or tensor.nbytes == tensor.untyped_storage().nbytes()
    return tensor if is_whole else tensor.detach().clone()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors of an archive.

    Raises:
        TypeError: it holds objects of other types.
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _tensors(each)
    elif not (value is None or isinstance(value, bool | int | float | str | bytes)):
        raise TypeError(f"a {type(value).__name__} is neither a tensor nor a number or string")
