"""Cases in which dense and sparse correlated GPs equal each other or kernel attention, and rounding
errors."""

import warnings

import pytest
import torch
from correlated_reference import kappa
from float64 import eye64, tensor64
from sampling import randn
from torch.testing import assert_close

from probattn.functional.cgp import CGP
from probattn.functional.jitter import JitterWarning
from probattn.functional.sparse_cgp import SparseCGP

SHAPE = 2, 3, 5  # examples, heads, tokens
LAW = {
    "scales": tensor64([[1.3, 0.8, 1.0], [0.6, 1.7, 1.0]]),
    "noise": tensor64([0.3, 0.07, 0.9]),
    "real": None,
    "count": 5,
}


@pytest.fixture
def points():
    return {
        name: randn(*SHAPE, 3, seed=seed)
        for seed, name in enumerate(("query", "key", "latent", "value"))
    }


def test_tokens_as_inducing_inputs_give_the_dense_mean(points):
    """Z_m = X_o and Z_ℓ = K: A_q 𝒦_ok (𝒦_k + σ²I)⁻¹ z_k (21)."""
    law = SparseCGP(**points, **LAW, inducing_query=points["latent"], inducing_key=points["key"])
    query, key, latent, value = points.values()
    (sq, sk) = LAW["scales"][..., None, None]
    noise = LAW["noise"][:, None, None] * eye64(5)
    a_q = sq * torch.linalg.solve(kappa(latent, latent) + noise, kappa(latent, query)).mT
    seen = torch.linalg.solve(sk**2 * kappa(key, key) + noise, value)
    assert_close(law.mean, a_q @ (sk * kappa(latent, key)) @ seen)


def test_all_points_as_inducing_inputs_give_the_dense_covariances(points):
    """Z_m ⊇ X_o ∪ Q and Z_ℓ ⊇ X_o ∪ K: the dense prior and V[z_q | z_k] + σ²I."""
    pairs = (("inducing_query", "query"), ("inducing_key", "key"))
    inducing = {name: torch.cat([points["latent"], points[of]], dim=-2) for name, of in pairs}
    sparse, dense = SparseCGP(**points, **LAW, **inducing), CGP(**points, **LAW)
    for name in ("prior", "predictive"):
        low, tril = getattr(sparse, name), getattr(dense, name).tril
        assert_close(
            low.factor @ low.factor.mT + torch.diag_embed(low.noise.expand(low.shape)),
            tril @ tril.mT,
        )


def test_one_projection_gives_kernel_attention_as_the_noise_vanishes(points):
    points = points | dict.fromkeys(("query", "key", "latent"), 2 * points["query"])
    attended = kappa(points["query"], points["query"]) @ points["value"]
    for sigma2 in (1e-1, 1e-3, 1e-9):
        noise = torch.full((3,), sigma2, dtype=torch.float64)
        law = CGP(**points, **LAW | {"noise": noise, "scales": torch.ones_like(LAW["scales"])})
        # The difference is σ² 𝒦 (𝒦 + σ²I)⁻¹ V, of at most σ² ‖V‖.
        difference = (law.mean - attended).norm() / points["value"].norm()
        assert 0.1 * sigma2 < difference <= sigma2 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("name", "noise", "options"),
    [
        ("query_covariance", 1e-4, {"noisy_output": False}),
        ("predictive", 1e-4, {"noisy_output": False}),
        ("key_covariance", 1e-8, {}),
    ],
)
def test_a_difference_that_is_all_rounding_is_moved_by_a_share_of_the_kernel(name, noise, options):
    """In float32 the points lie so close together that nothing of the kernel is left
    unexplained."""
    points = [1e-3 * torch.randn(2, 2, 16, 8) for _ in range(3)]
    law = CGP(
        *points,
        torch.randn(2, 2, 16, 8),
        torch.ones(2, 2),
        torch.full((2,), noise),
        None,
        16,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        covariance = getattr(law, name)
    assert covariance.tril.isfinite().all()
    assert covariance.variance().max() < 2e-2
