"""Inputs that break Gaussian processes: the layers answer with finite numbers or with an error that names them."""

import warnings

import pytest
import torch
from attention_layers import ANY_LENGTH
from elbos import TraceMeanField_ELBO
from torch import nn

from probattn import JitterWarning, NumericalError, SGPAttention, draws, guides
from probattn.inference import predict
from probattn.models import Classifier

DELICATE = ("kernel-exponential", "sgpa-joint", "sgpa-standard", "sgpa-standard-joint", "cgp-paper")
"""Layers whose matrices can be singular, or kernels that can overflow: these may refuse."""
STURDY = tuple(name for name in ANY_LENGTH if name not in DELICATE and not name.startswith(("softmax", "kep-svgp")))
"""Layers whose noise keeps every matrix positive definite: these must cope."""

INPUTS = {
    "repeated": lambda x: x[:, :1].expand_as(x),
    "zero": torch.zeros_like,
    "nearly repeated": lambda x: x[:, :1] + 1e-4 * x,
    "one token": lambda x: x[:, :1],
    "times 100": lambda x: 100 * x,
}


CASES = pytest.mark.parametrize(
    ("change", "half"),
    [
        *((pytest.param(change, False, id=f"{name}-float32")) for name, change in INPUTS.items()),
        *((pytest.param(INPUTS[name], True, id=f"{name}-bfloat16")) for name in ("repeated", "times 100")),
    ],
)
"""Each input in float32, and the two hardest in bfloat16."""


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
@pytest.mark.parametrize("name", STURDY)
def test_layers_with_noise_cope(name, change, half):
    for value in run(ANY_LENGTH[name], change, half=half):
        assert value.isfinite().all()


@CASES
@pytest.mark.parametrize("name", DELICATE)
def test_layers_that_can_be_singular_cope_or_say_so(name, change, half):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        try:
            values = run(ANY_LENGTH[name], change, half=half)
        except NumericalError as error:
            values, refusal = [], str(error)
    assert "network.attention" in refusal if not values else all(value.isfinite().all() for value in values)


@pytest.mark.parametrize("name", STURDY + DELICATE)
def test_nan_and_inf_in_inputs_and_weights_are_errors_that_name_the_layer(name):
    for bad in (torch.nan, torch.inf, "weight"):
        model, guide, x, y = make(ANY_LENGTH[name])
        if bad == "weight":
            next(model.network.attention.parameters()).data.view(-1)[0] = torch.nan
        else:
            x[2, 5, 3] = bad
        with pytest.raises(NumericalError, match=r"Attention 'network\.attention'"), draws("example"):
            TraceMeanField_ELBO()(model, guide)(x, y)


def test_jitter_is_reported_with_layer_and_matrix():
    factory = SGPAttention.partial(inducing=None, draws="joint")
    model, guide, x, y = make(factory)
    with pytest.warns(JitterWarning, match=r"SGPAttention 'network\.attention': K, the kernel.* of their scale"):
        TraceMeanField_ELBO()(model, guide)(x[:, :1].expand_as(x), y)
