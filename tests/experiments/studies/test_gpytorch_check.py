"""Closed forms equal GPyTorch's in float64, and a formula that is off by a millionth is detected and named."""

from functools import cached_property

import pytest
import torch

from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check
from probattn.functional import kep_svgp, sgpa
from probattn.functional.cgp import CGP
from probattn.functional.sparse_cgp import SparseCGP
from probattn.inference.methods.sv_dkl_gps import MarginalGridStrategy

COMPONENTS = ["KEP-SVGP", "SGPA", "CGP", "sparse CGP", "SV-DKL"]


LAWS = ("mean", "query_covariance", "key_covariance", "predictive")


@pytest.mark.parametrize("seed", [0, 1])
def test_every_component_is_gpytorchs(seed):
    before = torch.get_rng_state()
    errors = gp_check(seed=seed)
    assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}
    assert list(errors) == COMPONENTS
    assert torch.equal(torch.get_rng_state(), before)


def off(value):
    """Return a value that is a millionth too large."""
    if isinstance(value, tuple):
        return type(value)(*map(off, value))
    return value * (1 + 1e-6)


def function_off(monkeypatch, owner, name):
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **options: off(original(*args, **options)))


def property_off(monkeypatch, owner, name):
    """Change the noise or the factor of a covariance."""
    original = vars(owner)[name]
    compute = original.func if isinstance(original, cached_property) else original.fget

    def changed(law):
        value = compute(law)
        if isinstance(value, torch.Tensor):
            return off(value)
        return type(value)(off(vars(value).get("tril", vars(value).get("factor"))), *list(vars(value).values())[1:])

    monkeypatch.setattr(owner, name, property(changed))


@pytest.mark.parametrize(
    ("component", "change", "owner", "name"),
    [
        *(("KEP-SVGP", function_off, kep_svgp, name) for name in ("marginals", "kl_divergence")),
        *(("SGPA", function_off, sgpa, name) for name in ("conditional_covariance", "features", "amortised_kl")),
        *(("CGP", property_off, CGP, name) for name in LAWS),
        *(("sparse CGP", property_off, SparseCGP, name) for name in LAWS),
    ],
)
def test_a_wrong_formula_is_named(monkeypatch, component, change, owner, name):
    change(monkeypatch, owner, name)
    assert [other for other, error in gp_check().items() if not error <= TOLERANCE] == [component]


def test_the_command_prints_a_row_a_component_and_fails_where_one_is_off(command, monkeypatch):
    code, out, _ = command("check-gp", "--seed", 3)
    assert code == 0
    assert all(component in out for component in COMPONENTS)
    original = MarginalGridStrategy.forward
    shifted = lambda self, x, *args, **options: original(self, x + 1e-4, *args, **options)  # noqa: E731
    monkeypatch.setattr(MarginalGridStrategy, "forward", shifted)
    code, _, err = command("check-gp")
    assert code == 1
    assert "SV-DKL" in err
    assert "KEP" not in err
