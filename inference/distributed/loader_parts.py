"""Objects that a loader consists of: samplers, data sets, transforms, and the functions that these call."""

import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

MAX_DEPTH = 8
"""Number of attributes, entries or names from the loader to an object that is still found."""
MAX_PARTS = 10_000
"""Number of objects after which the search ends; the nearest to the loader are found first."""
MAX_ENTRIES = 1000
"""Number of entries of a list or a mapping whose entries are searched."""
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), type, ModuleType, torch.Tensor, np.ndarray)


def find_parts(loader: Any) -> dict[str, Any]:
    """Return the objects that a loader refers to, by path such as ``dataset.transform.transforms.0``.

    The search follows attributes, and entries of lists and mappings; it does not look into functions. An object is
    found once, on a shortest path; numbers, strings, modules and classes are left out.

    Args:
        loader: the loader, or a mapping of loaders by name.
    """
    found: dict[str, Any] = {}
    seen, queue = {id(loader)}, deque([("", loader, 0)])
    while queue and len(found) < MAX_PARTS:
        path, part, depth = queue.popleft()
        found[path] = part
        for name, child in _children(part) if depth < MAX_DEPTH else ():
            if id(child) not in seen and (not isinstance(child, _LEAVES) or is_array(child)):
                seen.add(id(child))
                queue.append((f"{path}.{name}".removeprefix("."), child, depth + 1))
    return found


def is_array(value: Any) -> bool:
    """Return True for tensors and NumPy arrays."""
    return isinstance(value, torch.Tensor | np.ndarray)


def attributes(part: Any) -> dict[str, Any]:
    """Return the attributes of an object by name; of a PyTorch loader only the public ones."""
    slots = [name for kind in type(part).__mro__ for name in vars(kind).get("__slots__", ()) if hasattr(part, name)]
    found = {name: getattr(part, name) for name in slots} | getattr(part, "__dict__", {})
    return {name: value for name, value in found.items() if not (isinstance(part, DataLoader) and name[0] == "_")}


def _children(part: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, dict | list | tuple | deque):
        kind = next(kind for kind in (dict, list, tuple, deque) if isinstance(part, kind))
        if kind.__len__(part) <= MAX_ENTRIES:  # methods of subclasses may count their calls
            yield from kind.items(part) if kind is dict else enumerate(kind.__iter__(part))
    elif isinstance(part, partial):
        yield from (("func", part.func), ("args", part.args), ("keywords", part.keywords))
    elif isinstance(part, MethodType):
        yield from (("__self__", part.__self__), ("__func__", part.__func__))
    elif not isinstance(part, _LEAVES) and not _is_of_standard_library(type(part)):
        yield from attributes(part).items()


def _is_of_standard_library(thing: type) -> bool:
    return thing.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}
