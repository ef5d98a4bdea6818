"""Deterministic mode: on inside, restored outside; operations without a deterministic algorithm raise."""

import os

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, fit
from probattn.inference.training.device import device_settings
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def state():
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return *mode, torch.backends.cudnn.benchmark


@pytest.fixture(params=[(False, False, False), (True, True, True)])
def before(request):
    """The state outside."""
    usual = state()
    torch.use_deterministic_algorithms(request.param[0], warn_only=request.param[1])
    torch.backends.cudnn.benchmark = request.param[2]
    yield request.param
    torch.use_deterministic_algorithms(usual[0], warn_only=usual[1])
    torch.backends.cudnn.benchmark = usual[2]


def put(x):
    """An operation that has no deterministic algorithm."""
    return x.clone().put_(torch.tensor([0]), torch.zeros(1))


def deterministic():
    return device_settings(TrainOptions(deterministic=True), torch.device("cpu"))


class Network(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.attention, self.head, self.change, self.seen = KEPSVGPAttention(4, 2, rank=1), nn.Linear(4, 2), change, []

    def forward(self, x):
        self.seen.append(state())
        return self.head(self.attention(self.change(x)).mean(-2))


def train(change=lambda x: x, **options):
    network = Network(change)
    model = Supervised(network, Categorical(), num_data=3)
    batches = [(torch.randn(3, 2, 4), torch.tensor([0, 1, 1]))]
    fit(
        model,
        guides.for_model(model),
        batches,
        batches,
        options=TrainOptions(epochs=1, accelerator="cpu", **options),
        progress=False,
    )
    return set(network.seen)


def test_it_is_on_inside_and_as_before_outside(before):
    with deterministic():
        assert state() == (True, False, False)
    assert state() == before
    with pytest.raises(KeyError), deterministic():
        raise KeyError
    assert state() == before


def test_what_has_no_deterministic_algorithm_raises_inside_alone():
    put(torch.ones(3))
    with deterministic(), pytest.raises(RuntimeError, match="put_ .*does not have a deterministic implementation"):
        put(torch.ones(3))


def test_training_and_validation_are_deterministic_if_the_option_is_set(before):
    assert train(deterministic=True) == {(True, False, False)}
    assert train() == {before}
    assert state() == before


def test_training_raises_where_it_cannot_be_deterministic():
    train(put)
    with pytest.raises(RuntimeError, match="put_ .*does not have a deterministic implementation"):
        train(put, deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("gpu", "own", "expected"), [(True, None, ":4096:8"), (True, ":16:8", ":16:8"), (False, None, None)]
)
def test_cublas_is_configured_if_there_is_a_gpu_and_it_is_not_yet(monkeypatch, gpu, own, expected):
    monkeypatch.setenv(VARIABLE, own or "")
    if own is None:
        monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with deterministic():
        assert os.environ.get(VARIABLE) == expected
