"""The objects that a loader refers to are found by path, in any place where users put generators."""

import functools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from probattn.inference import CheckpointError
from probattn.inference.distributed.loader_parts import MAX_DEPTH, MAX_ENTRIES, MAX_PARTS, find_parts
from probattn.inference.distributed.random_state import Generator, capture, generators, restore

GLOBAL = np.random.default_rng(0)


def add_noise(x):
    return x + GLOBAL.normal()


class Slotted:
    __slots__ = ("generator",)

    def __init__(self):
        self.generator = np.random.RandomState(0)


def found(loader):
    return sorted(generators(find_parts(loader)))


DATA = TensorDataset(torch.zeros(6, 2))


@pytest.mark.parametrize(
    ("loader", "paths"),
    [
        (DataLoader(DATA, shuffle=True), []),
        (DataLoader(DATA, shuffle=True, generator=torch.Generator()), ["generator"]),
        (DataLoader(DATA, sampler=RandomSampler(DATA, generator=torch.Generator())), ["sampler.generator"]),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA, generator=torch.Generator()), 2, False)),
            ["batch_sampler.sampler.generator"],
        ),
        (
            DataLoader(DATA, collate_fn=functools.partial(add_noise, Slotted())),
            ["collate_fn.args.0.generator"],
        ),
        (
            {"train": [Slotted().__init__], "valid": {"a": Slotted()}},
            ["train.0.__self__.generator", "valid.a.generator"],
        ),
    ],
)
def test_generators_are_found_once_by_their_shortest_path(loader, paths):
    assert found(loader) == paths


def test_the_search_ends():
    chain = [torch.Generator()]
    for _ in range(MAX_DEPTH + 1):
        chain = [chain]
    assert found(chain) == []
    assert found([torch.Generator()] * 2) == ["0"]
    circle = []
    circle.append(circle)
    assert len(find_parts(circle)) == 1
    assert len(find_parts([[object()] for _ in range(MAX_ENTRIES)])) == 2 * MAX_ENTRIES + 1
    assert len(find_parts([[object()] for _ in range(MAX_ENTRIES + 1)])) == 1
    assert len(find_parts([[object() for _ in range(MAX_ENTRIES)] for _ in range(20)])) == MAX_PARTS


NUMPY = [getattr(np.random, name) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")]


@pytest.mark.parametrize(
    "make",
    [
        torch.Generator,
        random.Random,
        np.random.RandomState,
        *(lambda kind=kind: np.random.Generator(kind()) for kind in NUMPY),
    ],
)
def test_each_kind_of_generator_is_restored(tmp_path, make):
    generator = make()
    assert isinstance(generator, Generator)

    def draw():
        if isinstance(generator, torch.Generator):
            return torch.randn(5, generator=generator).tolist()
        normal = generator.gauss if isinstance(generator, random.Random) else generator.normal
        return [normal(0, 1) for _ in range(5)]

    draw()
    torch.save(capture([generator]), tmp_path / "state")
    expected = draw()
    restore(torch.load(tmp_path / "state", weights_only=True), [generator])
    assert draw() == expected


def test_other_generators_are_refused_by_name():
    with pytest.raises(CheckpointError, match=r"\(train\.generator\); build it as in the first run"):
        restore(capture({"train": DataLoader(DATA, generator=torch.Generator())}), {"train": DataLoader(DATA)})
