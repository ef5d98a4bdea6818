"""Kernels of scaled dot-product attention during training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Leave attention on GPUs to the flash and memory-efficient kernels inside.

    On Hopper GPUs the backward pass of cuDNN's, which PyTorch would prefer in half precision, returns NaN for masked
    sequences of certain lengths (n mod 128 = 64; https://github.com/pytorch/pytorch/issues/196678). The others are as
    fast at the sizes of the presets.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
