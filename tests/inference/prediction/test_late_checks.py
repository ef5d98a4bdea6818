"""On a GPU, predict reads its checks once after the last batch, with the results and errors of a CPU."""

import pyro.distributions as dist
import pytest
import torch
from attention_layers import LAYERS
from synchronisations import Synchronisations

from probattn import guides
from probattn.inference import predict
from probattn.inference.prediction.late_checks import LateChecks, invalid_arguments
from probattn.inference.prediction.stacked_likelihood import stack
from probattn.models import Supervised, ViT, likelihoods

NUMBER = 6


@pytest.fixture
def _late(monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["probattn.inference.prediction.predict"], "checks_late", lambda device: True)


def build(likelihood=None, layer="kep-svgp"):
    torch.manual_seed(0)
    likelihood = likelihood or likelihoods.Categorical()
    outputs = 3 if isinstance(likelihood, likelihoods.Categorical) else 1
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "dim": 8, "heads": 2, "mlp_dim": 8}
    model = Supervised(ViT(depth=1, classes=outputs, attention=LAYERS[layer], **sizes), likelihood, num_data=10)
    return model, guides.for_model(model), [(torch.randn(2, 1, 4, 4), torch.zeros(2).long()) for _ in range(NUMBER)]


def waits(number, layer):
    model, guide, batches = build(layer=layer)
    with Synchronisations() as synchronisations:
        predict(model, guide, batches[:number], num_samples=2, seed=0)
    return len(synchronisations.seen)


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("layer", ["softmax", "kep-svgp", "kep-svgp-concat", "kep-svgp-authors"])
def test_the_host_waits_as_often_for_many_batches_as_for_one(layer):
    assert waits(1, layer) == waits(NUMBER, layer)


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize(("layer", "number"), [("kernel", 1), ("sgpa", 5), ("sparse-cgp", 6)])
def test_other_layers_wait_for_each_check_and_each_jitter_of_a_batch(layer, number):
    """Which jitter a matrix needs is read on the host; the documentation gives these numbers."""
    assert waits(NUMBER, layer) - waits(1, layer) == (NUMBER - 1) * number


@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(), likelihoods.Gaussian(scale=1.0)])
def test_the_prediction_is_that_of_checks_at_once(likelihood, request):
    model, guide, batches = build(likelihood)
    inputs = [x for x, _ in batches]
    at_once = predict(model, guide, inputs, num_samples=2, seed=0)
    request.getfixturevalue("_late")
    late = predict(model, guide, inputs, num_samples=2, seed=0)
    for name in ("probs", "mean", "variance"):
        one, other = getattr(at_once, name), getattr(late, name)
        assert one is other is None or torch.equal(one, other)


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(), likelihoods.Gaussian(scale=1.0)])
def test_the_first_batch_with_nan_is_named_after_the_last(likelihood):
    model, guide, batches = build(likelihood)
    inputs = [x for x, _ in batches]
    inputs[2] = inputs[2] * torch.nan
    with pytest.raises(ValueError, match="NaN or Inf in the inputs of batch 2"):
        predict(model, guide, inputs, num_samples=2)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or Inf in the outputs of batch 0, from parameter .* of the model"):
        predict(model, guide, [x for x, _ in batches], num_samples=2)


@pytest.mark.parametrize(
    ("likelihood", "wrong"),
    [
        (dist.Normal(torch.tensor([0.0, torch.nan]), 1.0, validate_args=False), True),
        (dist.Normal(torch.zeros(2), torch.tensor([1.0, -1.0]), validate_args=False).to_event(1), True),
        (dist.Normal(torch.zeros(2), 1.0).to_event(1).mask(torch.tensor(True)), False),
        (dist.Bernoulli(logits=torch.tensor([torch.nan]), validate_args=False), True),
        (stack([dist.Poisson(torch.tensor([rate]), validate_args=False) for rate in (1.0, -1.0)]), True),
    ],
)
def test_arguments_that_validation_refuses_are_found(likelihood, wrong):
    assert any(flag.item() for flag in invalid_arguments(likelihood)) == wrong


def test_the_first_failure_is_returned_and_none_without_any():
    checks = LateChecks(torch.device("cpu"))
    assert checks.first_failure() is None
    for number, flag in enumerate((False, True, True)):
        checks.add(torch.tensor(flag), "inputs", number)
    assert checks.first_failure() == ("inputs", 1)
