"""Digests: a sealed file is refused after any change of a bit, and digests of values tell all values apart."""

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest
import torch

from probattn.experiments.data.sealed_files import MARK, MOST, UNSEALED, digest, is_intact, seal


def test_sealed_bytes_are_intact_and_carry_the_digest_of_the_unsealed_ones():
    content = b"before " + UNSEALED.encode() + b" after"
    sealed = seal(content)
    assert is_intact(sealed)
    assert len(sealed) == len(content)
    assert sealed == f"before {MARK}{hashlib.sha256(content).hexdigest()} after".encode()


def test_every_flipped_bit_and_every_truncation_is_found():
    sealed = seal(b'{"a": 1, "digest": "' + UNSEALED.encode() + b'"}')
    for position, bit in itertools.product(range(len(sealed)), range(8)):
        flipped = bytearray(sealed)
        flipped[position] ^= 1 << bit
        assert not is_intact(bytes(flipped))
    assert not any(is_intact(sealed[:end]) for end in range(len(sealed)))
    assert not is_intact(sealed + b"\n")


def test_bytes_with_the_mark_of_another_file_inside_can_be_sealed():
    inner = seal(b"inner " + UNSEALED.encode())
    assert is_intact(seal(inner + UNSEALED.encode()))
    assert not is_intact(inner + b" more")


def test_bytes_with_very_many_digests_are_not_tried_one_by_one():
    """A file of some megabytes from elsewhere could take hours."""
    content = MOST * MARK.encode() + UNSEALED.encode()
    with pytest.raises(ValueError, match=f"at most {MOST} digests, got {MOST + 1}"):
        seal(content)
    forged = content.replace(UNSEALED.encode(), (MARK + hashlib.sha256(content).hexdigest()).encode())
    assert not is_intact(forged)
    assert is_intact(seal(content.removeprefix(MARK.encode())))


@pytest.mark.parametrize("content", [b"", b"no room", 2 * UNSEALED.encode()])
def test_bytes_without_room_for_one_digest_are_refused(content):
    assert not is_intact(content)
    with pytest.raises(ValueError, match="once"):
        seal(content)


VALUES = [
    None, True, 1, 1.0, "1", b"1", "", b"", [], {}, [1, 2], [2, 1], [[1], 2], [1, [2]], {"a": 1}, {"a": "1"}, {"b": 1},
    ["ab", "c"], ["a", "bc"], [None, None], [[None, None]], -0.0, 0.0, float("nan"),
    torch.zeros(2), torch.zeros(2, 1), torch.zeros(1, 2), torch.zeros(2).double(), torch.zeros(2).bool(),
    torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor(0.0), torch.zeros(0), torch.zeros(2).bfloat16(),
    np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1)),
]  # fmt: skip


def test_different_values_have_different_digests():
    digests = [digest(value) for value in VALUES]
    assert len(set(digests)) == len(VALUES)


def test_equal_values_have_equal_digests():
    matrix = torch.randn(3, 4)
    assert digest(matrix.T) == digest(matrix.T.contiguous())
    assert digest({"a": 1, "b": matrix}) == digest({"b": matrix.clone(), "a": 1})
    assert digest((1, 2)) == digest([1, 2])
    record = dataclasses.make_dataclass("Record", ["a", "b"])
    assert digest(record(1, matrix)) == digest({"a": 1, "b": matrix})


def test_a_value_of_another_type_is_refused():
    with pytest.raises(TypeError, match="function"):
        digest({"a": lambda: 0})
