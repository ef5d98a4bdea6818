"""Setting of the C library's memory allocator."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


def keep_memory() -> None:
    """Let this process keep the memory that it frees; does nothing unless the C library is glibc.

    By default glibc returns large tensors to the operating system, which clears their pages when the next step
    allocates them again: 10 to 20 % of a training step on a CPU. The process keeps its largest size instead.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
