"""Damage to files: flipped bits and cut ends, and what readers make of them."""

import contextlib
import random

import pytest

AMOUNTS = pytest.mark.parametrize("amount", [40, pytest.param(1500, marks=pytest.mark.slow)])
"""Number of damages of each file: a sample, and many."""


def flipped(content, amount, *, seed=0):
    """The content with one random bit changed, ``amount`` times; with each bit once if there are no more."""
    bits = range(8 * len(content))
    for bit in random.Random(seed).sample(bits, min(amount, len(bits))):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def cut(content, amount, *, seed=0):
    """The content up to a random place, ``amount`` times at most."""
    for length in random.Random(seed).sample(range(len(content)), min(amount, len(content))):
        yield content[:length]


@contextlib.contextmanager
def must_say(*words):
    """Check that an error, if there is one, contains these words."""
    try:
        yield
    except Exception as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"{missing} not in {error!r}") from error
        raise


def accepted(path, read, *, error, amount):
    """Yield what a reader returns of a damaged file in place of raising this error: nothing. The file is restored."""
    whole, found = path.read_bytes(), []
    read(path)
    for damaged in [*flipped(whole, amount), *cut(whole, max(10, amount // 10))]:
        path.write_bytes(damaged)
        with contextlib.suppress(error), must_say(str(path), "damaged"):
            found.append(read(path))
    path.write_bytes(whole)
    return found
