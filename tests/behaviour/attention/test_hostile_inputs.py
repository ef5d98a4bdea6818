"""Layers on hostile inputs: finite numbers, or an error that says what is wrong; never NaN from
finite inputs."""

import warnings

import pytest
import torch
from attention_layers import ANY_LENGTH, Network
from elbos import TraceMeanField_ELBO
from torch import nn

from probattn import JitterWarning, NumericalError, SGPAttention, draws, guides
from probattn.inference import predict
from probattn.models import Classifier

DELICATE = ("kernel-exponential", "sgpa-joint", "sgpa-standard", "sgpa-standard-joint", "cgp-paper")
"""Layers whose matrices can be singular, or kernels that can overflow: these may refuse."""
STURDY = tuple(
    name
    for name in ANY_LENGTH
    if name not in DELICATE and not name.startswith(("softmax", "kep-svgp"))
)
"""Layers whose noise keeps every matrix positive definite: these must cope."""
CHANGES = {
    "repeated": lambda x: x[:, :1].expand_as(x),
    "zero": torch.zeros_like,
    "nearly repeated": lambda x: x[:, :1] + 1e-4 * x,
    "one token": lambda x: x[:, :1],
    "times 100": lambda x: 100 * x,
}
HARDEST = ("repeated", "times 100")


def make(factory):
    model = Classifier(Network(factory), num_data=4)
    return model, guides.for_model(model), torch.randn(4, 32, 8), torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize("name", STURDY + DELICATE)
@pytest.mark.parametrize(
    ("change", "half"), [(c, False) for c in CHANGES] + [(c, True) for c in HARDEST]
)
def test_layers_with_noise_cope_and_those_that_can_be_singular_cope_or_say_so(name, change, half):
    """One step of training and a prediction."""
    model, guide, x, y = make(ANY_LENGTH[name])
    x, module = CHANGES[change](x), TraceMeanField_ELBO()(model, guide)
    with warnings.catch_warnings():
        if name in DELICATE:
            warnings.simplefilter("ignore", JitterWarning)
        try:
            with draws("example"), torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = module(x, y)
            loss.backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                prediction = predict(model, guide, x, num_samples=3)
        except NumericalError as error:
            assert name in DELICATE  # noqa: PT017
            assert "network.attention" in str(error)  # noqa: PT017
            return
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert all(value.isfinite().all() for value in (loss, prediction.probs, *gradients))


@pytest.mark.parametrize("name", STURDY + DELICATE)
def test_nan_and_inf_in_inputs_and_weights_are_errors_that_name_the_layer(name):
    for bad in (torch.nan, torch.inf, "weight"):
        model, guide, x, y = make(ANY_LENGTH[name])
        if bad == "weight":
            next(model.network.attention.parameters()).data.view(-1)[0] = torch.nan
        else:
            x[2, 5, 3] = bad
        with (
            pytest.raises(NumericalError, match=r"Attention 'network\.attention'"),
            draws("example"),
        ):
            TraceMeanField_ELBO()(model, guide)(x, y)


def test_jitter_is_reported_with_layer_and_matrix():
    model, guide, x, y = make(SGPAttention.partial(inducing=None, draws="joint"))
    with pytest.warns(
        JitterWarning, match=r"SGPAttention 'network\.attention': K, the kernel.* of their scale"
    ):
        TraceMeanField_ELBO()(model, guide)(x[:, :1].expand_as(x), y)


def test_outputs_with_more_dimensions_than_the_likelihood_takes_are_refused():
    model = Classifier(nn.Linear(8, 3), num_data=10)
    with pytest.raises(ValueError, match=r"batch shape \(1, 4, 1\).*\(samples, examples\)"):
        predict(model, guides.for_model(model), torch.zeros(1, 4, 1, 8))
