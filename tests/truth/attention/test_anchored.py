"""Anchored attention against exact GP regression, GPyTorch's sparse GP, brute force and
identities."""

import gpytorch
import pyro
import pyro.poutine as poutine
import pytest
import torch
from float64 import randn64, tensor64
from gpytorch.kernels import InducingPointKernel, RBFKernel
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import AnchoredAttention, local_posteriors, name_layers
from probattn.functional.feature_maps import Anchors
from probattn.functional.feature_regression import FeatureRegression
from probattn.functional.kernels import rbf

BATCH, HEADS, TOKENS, WIDTH, ANCHORS = 2, 3, 7, 4, 5
NOISE = tensor64([0.3, 0.5, 0.1])


@pytest.fixture
def points() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    torch.manual_seed(0)
    return tuple(0.7 * randn64(3, BATCH, HEADS, TOKENS, WIDTH))


@pytest.fixture
def anchors() -> Tensor:
    torch.manual_seed(1)
    return randn64(HEADS, ANCHORS, WIDTH)


def regression(
    query: Tensor, key: Tensor, value: Tensor, anchors: Tensor, *rest
) -> FeatureRegression:
    return FeatureRegression(Anchors(anchors), query, key, value, *rest)


def exact(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and log marginal likelihood of exact GP regression in each head, by dense
    solves."""
    covariance = rbf(key, key) + NOISE[:, None, None] * torch.eye(key.shape[-2], dtype=key.dtype)
    cross = rbf(query, key)
    gain = torch.linalg.solve(covariance, cross.mT).mT
    columns = MultivariateNormal(torch.zeros_like(value[..., 0]), covariance)
    evidence = columns.log_prob(value.movedim(-1, 0)).sum(0)
    return gain @ value, 1 - (gain * cross).sum(-1), evidence


def test_anchors_at_all_points_are_exact_gp_regression(points):
    query, key, value = (part[:1] for part in points)
    law = regression(query, key, value, torch.cat([query[0], key[0]], -2), NOISE, None, TOKENS)
    mean, variance, evidence = exact(query, key, value)
    assert_close(law.mean, mean)
    assert_close(law.variance, variance)
    assert_close(law.evidence, evidence)


def test_agrees_with_the_sparse_gp_of_gpytorch(points, anchors):
    query, key, value = points
    law = regression(query, key, value, anchors, NOISE, None, TOKENS)

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self, likelihood, inputs, targets, inducing):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            base = RBFKernel()
            base.lengthscale = 1.0
            self.covar_module = InducingPointKernel(base, inducing, likelihood)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    for head in range(HEADS):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISE[head]
        model = (
            SGPR(likelihood, key[0, head], value[0, head, :, 1], anchors[head].clone())
            .double()
            .eval()
        )
        with torch.no_grad(), gpytorch.settings.sgpr_diagonal_correction(False):
            predicted = model(query[0, head])
        assert_close(law.mean[0, head, :, 1], predicted.mean, rtol=1e-4, atol=1e-5)


def test_the_program_has_the_exact_posterior_and_its_kl():
    layer = AnchoredAttention(8, 2, anchors=3, output="draw", alpha=0.5).double()
    name_layers(layer, "layer")
    x = randn64(2, 6, 8)
    with pyro.plate("examples", len(x)):
        trace = poutine.trace(local_posteriors(layer)).get_trace(x)
    trace.compute_log_prob()
    law = layer.law(x, None)
    features = law.key_features
    precision = torch.eye(3, dtype=x.dtype) + features.mT @ features / law.noise[:, None, None]
    loc = torch.linalg.solve(precision, features.mT @ law.value) / law.noise[:, None, None]
    posterior = MultivariateNormal(loc.mT, precision_matrix=precision.unsqueeze(-3))
    prior = MultivariateNormal(torch.zeros_like(loc.mT), torch.eye(3, dtype=x.dtype))
    assert_close(
        trace.nodes["layer.w_kl"]["log_prob"], -kl_divergence(posterior, prior).sum((-2, -1))
    )
    assert_close(trace.nodes["layer.evidence"]["log_prob"], 0.5 * law.evidence.sum(-1))


def test_anchors_start_at_keys_of_vectors_seen_each_head_at_its_own():
    layer, x = AnchoredAttention(8, 2, anchors=5).double(), torch.randn(3, 6, 8).double()
    layer.initialise(x)
    keys = layer.query_key_value(x)[..., 8:16].flatten(0, 1).unflatten(-1, (2, 4))
    distance = (layer.anchors.unsqueeze(-2) - keys.transpose(0, 1).unsqueeze(1)).abs().amax(-1)
    assert distance.amin(-1).max() < 6e-2 * keys.std()
    assert all(len(head.unique()) == 5 for head in distance.argmin(-1))


def test_a_symmetric_layer_is_one_whose_keys_are_queries():
    shared, free = (AnchoredAttention(6, 2, anchors=3, symmetric=tied) for tied in (True, False))
    query, value = shared.query_value.weight.data.chunk(2)
    weight = torch.cat((query, query, value))
    free.load_state_dict(shared.state_dict() | {"query_key_value.weight": weight}, strict=False)
    x = torch.randn(2, 4, 6)
    assert_close(shared(x), free(x))
    for layer in (shared, free):
        torch.manual_seed(0)
        layer.initialise(x)
    assert_close(shared.anchors, free.anchors)
