"""Probe of a loader: its first batch from fixed random states, read twice, and what reading changes."""

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from probattn.inference.batches import unpack_batch
from probattn.inference.distributed import random_state
from probattn.inference.distributed.loader_parts import attributes, find_parts
from probattn.inference.io.digest import digest

MAX_BYTES = 2**28
"""Size of a tensor or array up to which its digest covers all of its content, and above it some rows."""
MAX_ROWS = 256
_PLAIN = (bool, int, float, str, type(None))


class Probe(NamedTuple):
    """Result of reading a loader's first batch twice.

    Args:
        loader: the loader.
        parts: the objects that it refers to (see :func:`~probattn.inference.distributed.loader_parts.find_parts`).
        batch: digest of each tensor of the first batch; empty if it was not read, is random, or depends on a state.
        is_random: True if the first batch differed although all generators that were found had the same states.
        changing: paths of the numbers and strings that reading has changed and that no ``state_dict()`` holds.
    """

    loader: Any
    parts: dict[str, Any]
    batch: dict[str, str]
    is_random: bool
    changing: frozenset[str]


def probe(loader: Any) -> Probe:
    """Read the first batch of a loader twice in this process, and restore all random states.

    Read is a copy of the loader and its samplers, so that their counters stay as they are; they share all else. Not
    read are lists, a stream (``IterableDataset``), which may not yield its examples twice, and a data set whose workers
    first run a function of the user (``worker_init_fn``).
    """
    parts = find_parts(loader)
    alone = _in_this_process(loader)
    if alone is None:
        return Probe(loader, parts, {}, False, frozenset())
    before = _plain_attributes(find_parts(alone))
    first, second = (_first_batch(alone) for _ in range(2))
    after = _plain_attributes(find_parts(alone))
    changing = frozenset(path for path, value in before.items() if repr(value) != repr(after.get(path)))
    is_known = first == second and not random_state.stateful(parts)
    return Probe(loader, parts, first if is_known else {}, first != second, changing)


def readable_copy(loader: Any) -> Any | None:
    """Return a loader of the same batches, of which reading changes no counter of the given one; None for a stream.

    The random states that it refers to are shared: read it under
    :func:`~probattn.inference.distributed.random_state.preserved`.
    """
    return loader if isinstance(loader, list | tuple) else _in_this_process(loader)


def is_plain(value: Any) -> bool:
    """Return True for numbers, strings, None, and tuples of them, which a checkpoint may hold."""
    return type(value) in _PLAIN or (type(value) is tuple and all(type(each) in _PLAIN for each in value))


def as_array(part: Any) -> Tensor | np.ndarray | None:
    """Return numerical data as a tensor or array: these themselves, ranges and lists of numbers; None for others."""
    if isinstance(part, Tensor):
        return part if part.layout == torch.strided and not part.is_quantized and not part.is_meta else None
    if isinstance(part, range):
        return np.array([part.start, part.stop, part.step])
    if type(part) in (list, tuple) and part and all(type(each) in (bool, int, float) for each in part):
        part = np.asarray(part)
    return part if isinstance(part, np.ndarray) and part.dtype.kind in "biufc" else None


def content_digest(part: Any) -> str:
    """Return the digest of numerical data; above :data:`MAX_BYTES` that of its shape and 256 evenly spaced rows."""
    array = as_array(part)
    if array.nbytes <= MAX_BYTES or len(array) <= MAX_ROWS:
        return digest(array)
    rows = np.linspace(0, len(array) - 1, MAX_ROWS).astype(int).tolist()
    return digest({"shape": tuple(array.shape), "rows": array[rows]})


def _in_this_process(loader: Any) -> Any | None:
    """Return a copy of a loader without worker processes, or None if it is not to be read."""
    if isinstance(loader, list | tuple):
        return None  # its content is known
    if isinstance(loader, DataLoader) and (
        isinstance(loader.dataset, IterableDataset) or loader.worker_init_fn is not None
    ):
        return None
    alone = _copy_with_samplers(loader, {})
    if isinstance(loader, DataLoader):
        vars(alone).update(num_workers=0, persistent_workers=False, timeout=0)
    return alone


def _copy_with_samplers(part: Any, copies: dict[int, Any]) -> Any:
    """Return a shallow copy of a loader or a sampler, in which samplers are copies, too."""
    if id(part) not in copies:
        try:
            copied = copy.copy(part)
        except Exception:  # of a class that cannot be copied
            copied = part
        copies[id(part)] = copied
        own = getattr(copied, "__dict__", {})
        inner = {name: own[name] for name in ("sampler", "batch_sampler") if own.get(name) is not None}
        own.update({name: _copy_with_samplers(each, copies) for name, each in inner.items()})
    return copies[id(part)]


def _first_batch(loader: Any) -> dict[str, str]:
    with random_state.preserved(loader):
        random_state.seed_all(loader, 0)
        batch = next(iter(loader), None)
    named = zip(("inputs", "labels", "mask"), () if batch is None else unpack_batch(batch), strict=False)
    return {f"{name} of the first batch": content_digest(part) for name, part in named if as_array(part) is not None}


def _plain_attributes(parts: dict[str, Any]) -> dict[str, Any]:
    saved = random_state.stateful(parts)
    found = {path: attributes(part) for path, part in parts.items() if path not in saved}
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, own in found.items()
        for name, value in own.items()
        if is_plain(value)
    }
