"""Damage to files: flipped bits and cut ends, and what readers make of them."""

import random


def accepted(path, read, *, error, amount):
    """Return what a reader returns of a damaged file in place of raising this error: nothing. The
    file is restored."""
    whole, found, source = path.read_bytes(), [], random.Random(0)
    read(path)
    damaged = [whole[: source.randrange(len(whole))] for _ in range(10)]
    for bit in source.sample(range(8 * len(whole)), amount):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        damaged.append(content)
    for content in damaged:
        path.write_bytes(content)
        try:
            found.append(read(path))
        except error as raised:
            assert all(word in str(raised) for word in (str(path), "damaged"))  # noqa: PT017
    path.write_bytes(whole)
    return found
