"""Random states of a loader and its sampler are captured and restored."""

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from two_ranks import data, shuffled

from probattn.inference import CheckpointError
from probattn.inference.distributed.random_state import capture, capture_all_ranks, restore, restore_own_rank


def test_a_samplers_generator_is_captured():
    generator = torch.Generator().manual_seed(3)
    examples = TensorDataset(*data())
    loader = DataLoader(examples, sampler=RandomSampler(examples, generator=generator))
    before = generator.get_state()
    state = capture(loader)
    list(loader)
    restore(state, loader)
    assert torch.equal(generator.get_state(), before)


def test_a_state_with_a_generator_does_not_fit_a_loader_without_one():
    with pytest.raises(CheckpointError, match="generator"):
        restore_own_rank(capture_all_ranks(shuffled()), [data()])
