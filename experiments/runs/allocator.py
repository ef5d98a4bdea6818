"""The C library's allocator, told to keep what it has been given."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def keep_memory() -> None:
    """Lets this process keep the memory that it frees, where the C library is GNU's.

    By default it hands large tensors back to the system, which clears their pages when the next step asks for them
    again: a tenth to a fifth of a training step's time on a CPU. The process then stays as large as it was at most.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
