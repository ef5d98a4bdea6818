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


def test_only_the_gpu_of_this_process_is_captured_and_restored(monkeypatch):
    """A checkpoint of a machine with several GPUs resumes on one with a single GPU."""
    gpu = torch.Generator().manual_seed(5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", gpu.get_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", gpu.set_state)
    before, states = gpu.get_state(), capture(())
    torch.randn(3, generator=gpu)
    restore(states, ())
    assert torch.equal(gpu.get_state(), before)


def test_a_checkpoint_of_a_gpu_resumes_without_one(monkeypatch):
    states = capture(()) | {"cuda": torch.Generator().get_state()}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    restore(states, ())
