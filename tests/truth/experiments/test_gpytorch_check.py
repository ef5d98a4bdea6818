"""Closed forms equal GPyTorch's in float64, and a formula that is off by a millionth is detected
and named."""

import inspect

import gpytorch
import pytest
import torch
from torch.testing import assert_close

from probattn.experiments.studies import gpytorch_check
from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check
from probattn.functional import kep_svgp, sgpa
from probattn.functional.sparse_cgp import SparseCGP

COMPONENTS = ["KEP-SVGP", "SGPA", "sparse CGP"]


def test_every_component_is_gpytorchs():
    before = torch.get_rng_state()
    errors = gp_check(seed=1)
    assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}
    assert list(errors) == COMPONENTS
    assert torch.equal(torch.get_rng_state(), before)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@torch.no_grad()
def test_the_standard_form_of_sgpa_is_the_gp_with_inducing_inputs_at_the_tokens():
    tokens, value, spread = randn(3, 7, 4), randn(3, 7, 2), randn(3, 7).exp()
    rbf = gpytorch.kernels.RBFKernel().double().initialize(lengthscale=1.0)
    k = rbf(tokens).to_dense()
    tril = spread.diag_embed().unsqueeze(1).expand(-1, 2, -1, -1)
    gp = gpytorch_check.VariationalGP(tokens, value.mT @ torch.linalg.cholesky(k), tril, rbf).eval()
    assert_close((k @ value).mT, gp(tokens.unsqueeze(1)).mean)
    kl = gp.variational_strategy.kl_divergence().sum()
    assert_close(sgpa.amortised_kl(value, k @ value, spread), kl)


def off(value):
    """Return tensors, or an object that holds them, a millionth too large."""
    if isinstance(value, tuple):
        return type(value)(*map(off, value))
    if isinstance(value, torch.Tensor):
        return value * (1 + 1e-6)
    return type(value)(
        *(off(part) if name in ("tril", "factor") else part for name, part in vars(value).items())
    )


@pytest.mark.parametrize(
    ("component", "owner", "name"),
    [
        *(("KEP-SVGP", kep_svgp, name) for name in ("marginals", "kl_divergence")),
        *(("SGPA", sgpa, name) for name in ("conditional_covariance", "features")),
        *(
            ("sparse CGP", SparseCGP, name)
            for name in ("mean", "query_covariance", "key_covariance", "predictive")
        ),
    ],
)
def test_a_wrong_formula_is_named(monkeypatch, component, owner, name):
    original = inspect.getattr_static(owner, name)
    compute = getattr(original, "func", None) or getattr(original, "fget", None) or original

    def changed(*args, **options):
        return off(compute(*args, **options))

    monkeypatch.setattr(owner, name, property(changed) if owner is SparseCGP else changed)
    assert [other for other, error in gp_check().items() if not error <= TOLERANCE] == [component]
