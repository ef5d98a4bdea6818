"""Settings of PyTorch that hold during training alone: precision of products, kernels of attention,
determinism."""

import pytest
import torch
from export_cases import images, vit

from probattn import CGPAttention, SGPAttention, SoftmaxAttention
from probattn.functional import jitter
from probattn.inference import TrainOptions, fit
from probattn.inference.training.device import device_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def state():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.get_deterministic_debug_mode(),
        torch.backends.cudnn.benchmark,
    )


@pytest.mark.parametrize(
    ("option", "device", "inside"), [(None, CUDA, "high"), ("medium", CPU, "medium")]
)
def test_settings_hold_inside_and_are_restored(option, device, inside):
    before = state()
    options = TrainOptions(matmul_precision=option, deterministic=True)

    def fail():
        assert state() == (inside, False, 2, False)
        raise KeyError

    with pytest.raises(KeyError), device_settings(options, device):
        fail()
    assert state() == before
    with device_settings(TrainOptions(), CPU):
        assert state() == (before[0], False, *before[2:])


def train(layer, change=lambda x: x, **options):
    (model, guide), seen = vit(layer), set()

    def watch(network, arguments):
        seen.add(state())
        return (change(*arguments),)

    model.network.register_forward_pre_hook(watch)
    options = TrainOptions(epochs=1, num_samples=1, accelerator="cpu", **options)
    batches = [(images(), torch.arange(5) % 3)]
    fit(model, guide, batches, batches, options=options, progress=False)
    return seen


def test_a_run_trains_and_validates_with_its_options():
    before = state()
    assert train(SoftmaxAttention, matmul_precision="high", deterministic=True) == {
        ("high", False, 2, False)
    }
    assert state() == before


@pytest.mark.parametrize("layer", [SGPAttention.partial(inducing=3), CGPAttention])
def test_what_is_factorised_is_computed_in_float32(layer, monkeypatch):
    seen, factorise = [], jitter.cholesky

    def watched(matrix, *args, **kwargs):
        seen.append(torch.get_float32_matmul_precision())
        return factorise(matrix, *args, **kwargs)

    monkeypatch.setattr(jitter, "cholesky", watched)
    train(layer, matmul_precision="high")
    assert set(seen) == {"highest"}


def test_training_raises_where_it_cannot_be_deterministic():
    def put(x):
        return x.clone().put_(torch.tensor([0]), torch.zeros(1, dtype=x.dtype))

    train(SoftmaxAttention, put)
    with pytest.raises(RuntimeError, match="put_ .*deterministic"):
        train(SoftmaxAttention, put, deterministic=True)
