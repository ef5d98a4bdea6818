"""Versions and hardware that a run is trained with, and the memory of this process."""

import ctypes
import platform

import torch

import probattn

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


def environment(device: str) -> dict[str, str]:
    """Return the versions of the library and of PyTorch, and the hardware of a device."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name() if device == "cuda" else cpu
    return {"probattn": probattn.__version__, "torch": torch.__version__, "hardware": hardware}


def keep_memory() -> None:
    """Let this process keep the memory that it frees; without glibc nothing happens.

    By default glibc returns large tensors to the operating system. The next step then waits for cleared pages: 10 to
    20 % of a training step on a CPU. The process keeps its largest size instead.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
