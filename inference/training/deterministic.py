"""Deterministic algorithms, so that two runs on the same machine are equal bit for bit."""

import contextlib
import os
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Context manager in which PyTorch uses deterministic algorithms only, and raises an error where there is none.

    On a GPU, cuBLAS reads the environment variable ``CUBLAS_WORKSPACE_CONFIG`` at its first call in the process. If it
    is not set, it is set here to ``:4096:8`` (24 MiB of GPU memory). If cuBLAS was called without it before, PyTorch
    raises a ``RuntimeError`` that names the variable: then set it before Python starts.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
