"""Memory of a long run does not grow: neither the number of live tensors, nor the memory of the process."""

import gc
import os
from pathlib import Path

import pyro
import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

EPOCHS = 20
MOST = 8 * 2**20
"""Bytes: more than the allocator's fluctuations, and far less than one autograd graph per step would need."""
LAYERS = {"kep-svgp": KEPSVGPAttention.partial(rank=2), "sgpa": SGPAttention.partial(inducing=3)}


@pytest.fixture(autouse=True)
def _count_new_objects_only():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Network(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention, self.head = layer(8, 2), nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x + self.attention(x)).mean(-2))


def build(layer):
    model = Supervised(Network(layer), Categorical(), num_data=64)
    return model, guides.for_model(model), torch.randn(64, 16, 8), torch.arange(64) % 3


def tensors():
    """Return the number of live tensors that the test has created."""
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def resident():
    """Return the resident memory of the process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watched(list):
    """Batches that measure the memory at the start of each pass."""

    def __iter__(self):
        self.seen = [*getattr(self, "seen", []), (tensors(), resident())]
        return super().__iter__()


def assert_flat(seen, *, after):
    """Assert that neither tensors nor memory grow after that many passes."""
    counts, sizes = zip(*seen[after:], strict=True)
    assert max(counts) == min(counts)
    assert max(sizes[len(sizes) // 2 :]) - max(sizes[: len(sizes) // 2]) < MOST


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_training_and_prediction_do_not_grow(tmp_path, layer):
    model, guide, x, y = build(layer)
    batches, seen = Watched([(x[:32], y[:32]), (x[32:], y[32:])]), []
    options = {"epochs": EPOCHS, "kl_anneal_epochs": EPOCHS, "num_samples": 2, "log_every": 1, "accelerator": "cpu"}
    fit(model, guide, batches, [(x, y)], options=TrainOptions(**options), out=tmp_path, progress=False)
    assert len(pyro.get_param_store()) == 0
    assert_flat(batches.seen, after=8)
    for _ in range(EPOCHS):
        predict(model, guide, [(x, y)], num_samples=3)
        seen.append((tensors(), resident()))
    assert_flat(seen, after=8)
