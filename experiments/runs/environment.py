"""Versions and hardware that a run was trained with."""

import platform
from importlib.metadata import version

import torch


def environment(device: str) -> dict[str, str]:
    """Return the versions of the library and of PyTorch, and the hardware of a device."""
    hardware = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return {"probattn": version("probattn"), "torch": torch.__version__, "hardware": hardware}
