"""Compilation of the pure functions of a training step that lie outside the compiled blocks of a network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

from probattn.functional.errors import ThreadValue

P = ParamSpec("P")
R = TypeVar("R")

_COMPILES = ThreadValue(False)


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """Let :func:`torch.compile` compile a pure function of tensors inside :func:`compiled`.

    What is many small kernels on a GPU, and as many again in the backward pass, is then one or two.
    """
    compile_once = cache(lambda: torch.compile(function))  # at its first use: this imports the compiler

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (compile_once() if _COMPILES.value else function)(*args, **kwargs)

    return run


@contextmanager
def compiled() -> Iterator[None]:
    """Compile the functions marked :func:`compilable`, each when it first runs."""
    with _COMPILES.replaced(True):
        yield
