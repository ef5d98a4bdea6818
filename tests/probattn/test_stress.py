"""Inputs that break Gaussian processes: the layers answer with finite numbers or with an error that names them."""

import warnings

import pytest
import torch
from elbos import TraceMeanField_ELBO
from torch import nn

from probattn import (
    AnchoredAttention,
    CGPAttention,
    JitterWarning,
    KernelAttention,
    NumericalError,
    SGPAttention,
    SparseCGPAttention,
    draws,
    guides,
)
from probattn.inference import predict
from probattn.models import Classifier

STURDY = {
    "kernel": KernelAttention.partial(),
    "kernel-ard": KernelAttention.partial(kernel="ard", symmetric=True),
    "sgpa": SGPAttention.partial(inducing=8),
    "cgp": CGPAttention.partial(),
    "cgp-mean": CGPAttention.partial(output="mean"),
    "cgp-prior": CGPAttention.partial(canonical_guide="prior"),
    "cgp-learned": CGPAttention.partial(canonical_guide="learned"),
    "cgp-collapsed": CGPAttention.partial(collapsed=True),
    "cgp-collapsed-mean": CGPAttention.partial(collapsed=True, output="mean"),
    "cgp-collapsed-prior": CGPAttention.partial(collapsed=True, canonical_guide="prior"),
    "sparse-cgp": SparseCGPAttention.partial(inducing=8),
    "anchored": AnchoredAttention.partial(anchors=8, output="draw"),
    "sparse-cgp-prior": SparseCGPAttention.partial(inducing=8, canonical_guide="prior"),
    "sparse-cgp-collapsed": SparseCGPAttention.partial(inducing=8, collapsed=True),
}
"""Layers whose noise keeps every matrix positive definite: these must cope."""

DELICATE = {
    "kernel-exponential": KernelAttention.partial(kernel="exponential"),
    "sgpa-joint": SGPAttention.partial(inducing=8, draws="joint"),
    "sgpa-exponential": SGPAttention.partial(inducing=8, kernel="exponential"),
    "sgpa-standard": SGPAttention.partial(inducing=None),
    "sgpa-standard-joint": SGPAttention.partial(inducing=None, draws="joint"),
    "cgp-noise-free": CGPAttention.partial(noisy_canonical=False, noisy_output=False),
    "cgp-noise-free-collapsed": CGPAttention.partial(noisy_canonical=False, noisy_output=False, collapsed=True),
    "cgp-noise-free-prior": CGPAttention.partial(noisy_output=False, canonical_guide="prior"),
}
"""Layers whose matrices can be singular, or kernels that can overflow: these may refuse."""

INPUTS = {
    "repeated": lambda x: x[:, :1].expand_as(x),
    "zero": torch.zeros_like,
    "nearly repeated": lambda x: x[:, :1] + 1e-4 * x,
    "one token": lambda x: x[:, :1],
    "times 100": lambda x: 100 * x,
    "times 1e-4": lambda x: 1e-4 * x,
    "two tokens repeated": lambda x: x[:, :2].repeat(1, 16, 1),
}


CASES = pytest.mark.parametrize(
    ("change", "half"),
    [
        pytest.param(change, half, id=f"{name}-{'bfloat16' if half else 'float32'}", marks=marks)
        for name, change in INPUTS.items()
        for half in (False, True)
        for marks in [pytest.mark.slow if half and name not in ("repeated", "times 100") else ()]
    ],
)
"""Each input in float32, and the two hardest in bfloat16; `make test-all` runs all in both."""


class Network(nn.Module):
    def __init__(self, factory):
        super().__init__()
        self.attention, self.head = factory(16, 2), nn.Linear(16, 3)

    def forward(self, x, mask=None):
        return self.head(self.attention(x, mask).mean(-2))


def make(factory):
    torch.manual_seed(0)
    model = Classifier(Network(factory), num_data=4)
    return model, guides.for_model(model), torch.randn(4, 32, 16), torch.tensor([0, 1, 2, 1])


def run(factory, change, *, half):
    """One step of training and a prediction; all that must be finite."""
    model, guide, x, y = make(factory)
    x = change(x)
    module = TraceMeanField_ELBO()(model, guide)
    with draws("example"), torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = module(x, y)
    loss.backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        prediction = predict(model, guide, x, num_samples=3)
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [loss, prediction.probs, *gradients]


@CASES
@pytest.mark.parametrize("factory", STURDY.values(), ids=STURDY)
def test_layers_with_noise_cope(factory, change, half):
    for value in run(factory, change, half=half):
        assert value.isfinite().all()


@CASES
@pytest.mark.parametrize("factory", DELICATE.values(), ids=DELICATE)
def test_layers_that_can_be_singular_cope_or_say_so(factory, change, half):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        try:
            values = run(factory, change, half=half)
        except NumericalError as error:
            values, refusal = [], str(error)
    assert "network.attention" in refusal if not values else all(value.isfinite().all() for value in values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("factory", (STURDY | DELICATE).values(), ids=STURDY | DELICATE)
def test_a_nan_is_an_error_that_names_the_layer(factory, bad):
    model, guide, x, y = make(factory)
    x[2, 5, 3] = bad
    with pytest.raises(NumericalError, match=r"Attention 'network\.attention': .*NaN or Inf"), draws("example"):
        TraceMeanField_ELBO()(model, guide)(x, y)


@pytest.mark.parametrize("factory", (STURDY | DELICATE).values(), ids=STURDY | DELICATE)
def test_weights_that_are_nan_are_an_error_that_names_the_layer(factory):
    model, guide, x, y = make(factory)
    next(model.network.attention.parameters()).data.view(-1)[0] = float("nan")
    with pytest.raises(NumericalError, match=r"'network\.attention'"), draws("example"):
        TraceMeanField_ELBO()(model, guide)(x, y)


def test_jitter_is_reported_with_layer_and_matrix():
    factory = SGPAttention.partial(inducing=None, draws="joint")
    model, guide, x, y = make(factory)
    with pytest.warns(JitterWarning, match=r"SGPAttention 'network\.attention': K, the kernel.* of their scale"):
        TraceMeanField_ELBO()(model, guide)(x[:, :1].expand_as(x), y)
