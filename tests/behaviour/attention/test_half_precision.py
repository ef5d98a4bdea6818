"""Layers, guides and likelihoods with half-precision weights are those with the same weights in float32.

Factorisations, densities and KL are computed in float32; only linear maps round to half precision.
"""

import copy

import pytest
import torch
from elbos import TraceMeanField_ELBO
from export_cases import LAYERS
from torch import nn

from probattn import AnchoredAttention, CGPAttention, KEPSVGPAttention, SGPAttention, SparseCGPAttention, guides
from probattn.inference import predict
from probattn.models import Supervised, TextTransformer, likelihoods

pytestmark = pytest.mark.filterwarnings("ignore::probattn.functional.jitter.JitterWarning")  # few tokens in float32
CASES = LAYERS | {
    "kep-svgp-lowrank": KEPSVGPAttention.partial(rank=2, merge="concat_lowrank", tokens=4),
    "kep-svgp-plain": KEPSVGPAttention.partial(rank=2, projection="plain"),
    "kep-svgp-horseshoe": KEPSVGPAttention.partial(rank=2, prior="horseshoe"),
    "sgpa-exponential": SGPAttention.partial(inducing=3, kernel="exponential", bias=True),
    "cgp-learned": CGPAttention.partial(canonical_guide="learned"),
    "cgp-collapsed": CGPAttention.partial(collapsed=True, learn_noise=True),
    "anchored": AnchoredAttention.partial(anchors=2, output="draw"),
    "sparse-cgp-tokens": SparseCGPAttention.partial(inducing=2, tokens=4),
}
TOLERANCE = 2e-2  # of bfloat16
Y = torch.tensor([0, 1, 2])


def pair(layer, family="full", *, likelihood=None, outputs=3):
    """Model and guide with half-precision weights, and copies with the same weights in float32."""
    torch.manual_seed(0)
    sizes = {"classes": outputs, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8, "max_length": 4}
    network = TextTransformer(nn.Linear(2, 8), attention=layer, **sizes)
    model = Supervised(network, likelihood or likelihoods.Categorical(), num_data=3)
    guide = guides.for_model(model, family)
    model.bfloat16(), guide.bfloat16()
    exact = copy.deepcopy(model).float()
    exact_guide = guides.for_model(exact, family)
    exact_guide.load_state_dict(guide.state_dict())
    return (model, guide), (exact, exact_guide)


def batch():
    return torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1)).bfloat16()


def evaluate(model, guide, x, y=Y):
    """ELBO, its gradient as one vector, and predictions."""
    torch.manual_seed(2)
    loss = TraceMeanField_ELBO()(model, guide)(x, y)
    loss.backward()
    parameters = (*model.parameters(), *guide.parameters())
    gradient = torch.cat([p.grad.flatten().float() for p in parameters if p.grad is not None])
    torch.manual_seed(3)
    return loss.detach(), gradient, predict(model, guide, x, num_samples=4)


@pytest.mark.parametrize("layer", CASES)
def test_a_layer_is_that_of_float32(layer):
    half, exact = pair(CASES[layer])
    loss, gradient, prediction = evaluate(*half, batch())
    expected_loss, expected_gradient, expected = evaluate(*exact, batch().float())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected_loss, rtol=TOLERANCE, atol=0)
    if layer != "kep-svgp-svd":  # whose singular subspaces turn far for rounded weights where singular values are close
        assert (gradient - expected_gradient).norm() < 10 * TOLERANCE * expected_gradient.norm()
    assert gradient.isfinite().all()
    torch.testing.assert_close(prediction.probs, expected.probs, rtol=0, atol=TOLERANCE)
    assert prediction.probs.dtype == torch.float32


@pytest.mark.parametrize("family", ["diagonal", "lowrank", "delta"])
@pytest.mark.parametrize("layer", ["kep-svgp", "kep-svgp-horseshoe", "sgpa"])
def test_a_guide_is_that_of_float32(layer, family):
    half, exact = pair(CASES[layer], family)
    loss, _, prediction = evaluate(*half, batch())
    expected_loss, _, expected = evaluate(*exact, batch().float())
    torch.testing.assert_close(loss, expected_loss, rtol=TOLERANCE, atol=0)
    torch.testing.assert_close(prediction.probs, expected.probs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("layer", ["kep-svgp", "sgpa", "cgp"])
def test_a_guide_built_for_a_half_precision_model_is_in_float32(layer):
    torch.manual_seed(0)
    network = TextTransformer(
        nn.Linear(2, 8), attention=CASES[layer], classes=3, dim=8, depth=2, heads=2, mlp_dim=8, max_length=4
    )
    model = Supervised(network, likelihoods.Categorical(), num_data=3).bfloat16()
    guide = guides.for_model(model)
    assert all(parameter.dtype == torch.float32 for parameter in guide.parameters())
    loss, gradient, prediction = evaluate(model, guide, batch())
    assert loss.isfinite()
    assert gradient.isfinite().all()
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(3))


REAL = torch.tensor([[0.5], [-1.0], [2.0]])


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y"),
    [
        (lambda: likelihoods.Ordinal(4), 1, Y),
        (likelihoods.Bernoulli, 2, torch.tensor([[0, 1], [1, 1], [0, 0]])),
        (lambda: likelihoods.Gaussian(0.3), 1, REAL),
        (likelihoods.HeteroscedasticGaussian, 2, REAL),
        (lambda: likelihoods.StudentT(3.0, learn_df=True), 1, REAL),
        (lambda: likelihoods.StudentT(3.0), 1, REAL),
        (likelihoods.Poisson, 1, torch.tensor([[0], [3], [1]])),
        (lambda: likelihoods.NegativeBinomial(2.0), 1, torch.tensor([[0], [3], [1]])),
    ],
)
def test_a_likelihood_is_that_of_float32(likelihood, outputs, y):
    half, exact = pair(CASES["kep-svgp"], likelihood=likelihood(), outputs=outputs)
    loss, _, prediction = evaluate(*half, batch(), y)
    expected_loss, _, expected = evaluate(*exact, batch().float(), y)
    torch.testing.assert_close(loss, expected_loss, rtol=TOLERANCE, atol=0)
    torch.testing.assert_close(prediction.log_prob(y), expected.log_prob(y), rtol=TOLERANCE, atol=TOLERANCE)
