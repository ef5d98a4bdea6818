"""Layers, guides and likelihoods with half-precision weights are those with the same weights in
float32.

Factorisations, densities and KL are computed in float32; only linear maps round to half precision.
"""

import copy
import itertools

import pytest
import torch
from elbos import TraceMeanField_ELBO
from export_cases import LAYERS
from torch import nn
from torch.testing import assert_close

from probattn import (
    AnchoredAttention,
    CGPAttention,
    KEPSVGPAttention,
    RFFCGPAttention,
    RFFGPAttention,
    SGPAttention,
    SparseCGPAttention,
    guides,
)
from probattn.inference import predict
from probattn.models import Supervised, TextTransformer, likelihoods

pytestmark = pytest.mark.filterwarnings(
    "ignore::probattn.functional.jitter.JitterWarning"
)  # few tokens in float32
CASES = LAYERS | {
    "kep-svgp-lowrank": KEPSVGPAttention.partial(rank=2, merge="concat_lowrank", tokens=4),
    "kep-svgp-plain": KEPSVGPAttention.partial(rank=2, projection="plain"),
    "kep-svgp-horseshoe": KEPSVGPAttention.partial(rank=2, prior="horseshoe"),
    "sgpa-exponential": SGPAttention.partial(inducing=3, kernel="exponential", bias=True),
    "cgp-learned": CGPAttention.partial(canonical_guide="learned"),
    "cgp-collapsed": CGPAttention.partial(collapsed=True, learn_noise=True),
    "anchored": AnchoredAttention.partial(anchors=2, output="draw"),
    "rff-gpa": RFFGPAttention.partial(features=4, output="draw", frequencies="sampled"),
    "rff-cgp": RFFCGPAttention.partial(features=4),
    "sparse-cgp-tokens": SparseCGPAttention.partial(inducing=2, tokens=4),
}
TOLERANCE = 2e-2  # of bfloat16
X = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1)).bfloat16()
Y = torch.tensor([0, 1, 2])


def build(layer, likelihood=None, outputs=3):
    torch.manual_seed(0)
    sizes = {"classes": outputs, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8, "max_length": 4}
    network = TextTransformer(nn.Linear(2, 8), attention=CASES[layer], **sizes)
    return Supervised(network, likelihood or likelihoods.Categorical(), num_data=3)


def evaluate(model, guide, x, y=Y):
    """ELBO, its gradient as one vector, and predictions."""
    torch.manual_seed(2)
    loss = TraceMeanField_ELBO()(model, guide)(x, y)
    loss.backward()
    parameters = (*model.parameters(), *guide.parameters())
    gradient = torch.cat([p.grad.flatten().float() for p in parameters if p.grad is not None])
    torch.manual_seed(3)
    return loss.detach(), gradient, predict(model, guide, x, num_samples=4)


def compared(model, family="full", y=Y):
    """What half-precision weights give, and the same weights in float32; the losses are near."""
    guide = guides.for_model(model, family).bfloat16()
    exact = copy.deepcopy(model.bfloat16()).float()
    exact_guide = guides.for_model(exact, family)
    exact_guide.load_state_dict(guide.state_dict())
    half, single = evaluate(model, guide, X, y), evaluate(exact, exact_guide, X.float(), y)
    assert half[0].dtype == torch.float32
    assert_close(half[0], single[0], rtol=TOLERANCE, atol=0)
    return half[1:], single[1:]


FAMILIES = itertools.product(
    ("kep-svgp", "kep-svgp-horseshoe", "sgpa"), ("diagonal", "lowrank", "delta")
)


@pytest.mark.parametrize(("layer", "family"), [*((layer, "full") for layer in CASES), *FAMILIES])
def test_a_layer_and_a_guide_are_those_of_float32(layer, family):
    (gradient, prediction), (expected_gradient, expected) = compared(build(layer), family)
    assert gradient.isfinite().all()
    if (
        layer != "kep-svgp-svd"
    ):  # whose singular subspaces turn far for rounded weights where singular values are close
        assert (gradient - expected_gradient).norm() < 10 * TOLERANCE * expected_gradient.norm()
    assert_close(prediction.probs, expected.probs, rtol=0, atol=TOLERANCE)
    assert prediction.probs.dtype == torch.float32


@pytest.mark.parametrize("layer", ["kep-svgp", "sgpa", "cgp"])
def test_a_guide_built_for_a_half_precision_model_is_in_float32(layer):
    model = build(layer).bfloat16()
    guide = guides.for_model(model)
    assert all(parameter.dtype == torch.float32 for parameter in guide.parameters())
    loss, gradient, prediction = evaluate(model, guide, X)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert_close(prediction.probs.sum(-1), torch.ones(3))
