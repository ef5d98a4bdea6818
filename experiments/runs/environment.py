"""Versions and hardware that a run is trained with."""

import os
import platform
import sys

import torch

import probattn


def environment(device: str) -> dict[str, str]:
    """Return the versions of the library and of PyTorch, and the hardware of a device."""
    hardware = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return {"probattn": probattn.__version__, "torch": torch.__version__, "hardware": hardware}


def total_memory(device: str) -> int:
    """Return the memory of a device in bytes; the largest integer where the system does not tell."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[1]
    if not hasattr(os, "sysconf"):  # Windows
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
