"""Private parts of Pyro and PyTorch, each with its reason; a new version that moves them breaks
this file alone.

Methods of handlers (``_pyro_sample``, ``_pyro_post_sample``) are Pyro's protocol and may be defined
anywhere.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from torch import nn
from torch.distributions import Distribution

HANDLERS: list[Messenger] = _PYRO_STACK
"""Active handlers, the outermost first. A global site must see which plates are active; Pyro has no
public list."""


PLATES_OF_SAMPLES = ("num_particles_vectorized", "_num_predictive_samples")
"""Names of the plates of Pyro's ELBOs and of ``Predictive``: their rows are samples, and never
examples."""


backward_task = torch._C._current_graph_task_id
"""Return −1, or the number of the backward pass that is running, which tells recomputation from a
forward pass."""


@contextmanager
def without_handlers(hidden: Sequence[Messenger]) -> Iterator[None]:
    """Take some handlers off Pyro's stack; they return in their places on exit."""
    active = list(_PYRO_STACK)
    _PYRO_STACK[:] = [handler for handler in active if handler not in hidden]
    try:
        yield
    finally:
        _PYRO_STACK[:] = active


def handlers_around(program: Any) -> tuple[list[Messenger], Any]:
    """Return the handlers around a program, the outermost first, and the module or function inside
    them.

    Pyro has ``poutine.unwrap`` for the latter alone.
    """
    handlers = []
    while not isinstance(program, nn.Module):
        if isinstance(program, functools.partial) and len(program.args) >= 2:
            handler, program = program.args[:2]
            handlers.append(handler)
        elif isinstance(getattr(program, "msngr", None), Messenger):
            handlers.append(program.msngr)
            program = program.fn
        elif callable(inner := getattr(program, "func", None)):
            program = inner
        else:
            break
    return handlers, program


def is_validated() -> bool:
    """Return True if distributions check their parameters and values; PyTorch has no public
    function for that."""
    return Distribution._validate_args


@contextmanager
def without_validation() -> Iterator[None]:
    """Leave out inside what Pyro and PyTorch check by reading values, and then restore the settings
    of both."""
    of_torch = is_validated()
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        Distribution.set_default_validate_args(of_torch)


def is_svi() -> bool:
    """Return True inside :meth:`pyro.infer.SVI.step`, which trains what the parameter statements of
    its run return."""
    # any() would call a generator for each handler in each layer.
    for handler in _PYRO_STACK:  # noqa: SIM110
        if isinstance(handler, TraceMessenger) and handler.param_only:
            return True
    return False


def sampled_attributes(module: nn.Module) -> list[str]:
    """Return the names of the attributes of a module and its parts that are a ``PyroSample``."""
    modules = [
        (path, submodule)
        for path, submodule in module.named_modules()
        if isinstance(submodule, PyroModule)
    ]
    return [
        f"{path}.{name}".removeprefix(".")
        for path, submodule in modules
        for name in submodule._pyro_samples
    ]


class PathModule(PyroModule):
    """PyroModule that is told its path, when it becomes a child of another PyroModule."""

    path = ""

    def _pyro_set_supermodule(self, name: str, context: Any) -> None:
        super()._pyro_set_supermodule(name, context)
        self.set_path(name)

    def set_path(self, path: str) -> None:
        """Receive the path below the root PyroModule."""
        self.path = path
