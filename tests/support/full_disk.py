"""A disk that is full after a number of bytes."""

import contextlib
import resource

import pytest


@contextlib.contextmanager
def full_after(size):
    """Let no file grow beyond ``size`` bytes: writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_refused(write, folder, *, sizes=(0, 100)):
    """Check that a function that writes to a folder fails and leaves nothing.

    Returns:
        The names of the files that it writes with enough space.
    """
    for size in sizes:
        with full_after(size), pytest.raises(OSError, match="File too large"):
            write()
        assert [path for path in folder.rglob("*") if path.is_file()] == []
    write()
    content = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert all(len(each) > max(sizes) for each in content.values())
    with full_after(sizes[-1]), pytest.raises(OSError, match="File too large"):
        write()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == content
    return {str(path.relative_to(folder)) for path in content}
