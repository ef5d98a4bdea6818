"""Closed forms equal GPyTorch's in float64, and a formula that is off by a millionth is detected and named."""

from functools import cached_property

import pytest
import torch

from probattn.experiments.studies.gpytorch_check import TOLERANCE, gp_check
from probattn.functional import kep_svgp, sgpa
from probattn.functional.cgp import CGP
from probattn.functional.sparse_cgp import SparseCGP
from probattn.inference.methods.sv_dkl_gps import MarginalGridStrategy

COMPONENTS = {"KEP-SVGP", "KEP-SVGP, optimal q(u)", "SGPA, decoupled", "SGPA, standard", "CGP", "sparse CGP", "SV-DKL"}


@pytest.mark.parametrize("seed", [0, 1])
def test_every_quantity_is_gpytorchs(seed):
    before = torch.get_rng_state()
    errors = gp_check(seed=seed)
    assert {names: error for names, error in errors.items() if error[1] > 1e-12} == {}
    assert {component for component, _ in errors} == COMPONENTS
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


BROKEN = {
    "KEP-SVGP: mean of F, covariance of F": (function_off, kep_svgp, "marginals"),
    "KEP-SVGP: KL of u": (function_off, kep_svgp, "kl_divergence"),
    "SGPA, decoupled: covariance of f": (function_off, sgpa, "conditional_covariance"),
    "SGPA, decoupled: mean of f, covariance of f": (function_off, sgpa, "features"),
    "SGPA, standard: KL of g": (function_off, sgpa, "amortised_kl"),
    "CGP: mean of z_q": (property_off, CGP, "mean"),
    "CGP: density of z_q given z_o": (property_off, CGP, "query_covariance"),
    "CGP: density of z_k given z_o": (property_off, CGP, "key_covariance"),
    "CGP: density of z_q given z_k": (property_off, CGP, "predictive"),
    "sparse CGP: mean of z_q": (property_off, SparseCGP, "mean"),
    "sparse CGP: density of z_q given z_o": (property_off, SparseCGP, "query_covariance"),
    "sparse CGP: density of z_k given z_o": (property_off, SparseCGP, "key_covariance"),
    "sparse CGP: density of z_q given z_k": (property_off, SparseCGP, "predictive"),
}


@pytest.mark.parametrize("expected", BROKEN)
def test_a_wrong_formula_is_named(monkeypatch, expected):
    component, _, quantities = expected.partition(": ")
    change, owner, name = BROKEN[expected]
    change(monkeypatch, owner, name)
    wrong = [names[1] for names, error in gp_check().items() if names[0] == component and error[1] > TOLERANCE]
    assert ", ".join(wrong) == quantities


def test_the_command_prints_a_row_a_quantity_and_fails_where_one_is_off(command, monkeypatch):
    code, out, _ = command("check-gp", "--seed", 3)
    assert code == 0
    assert sum("e-" in line or "e+" in line for line in out.splitlines()[:-1]) == len(gp_check(seed=3))
    original = MarginalGridStrategy.forward
    shifted = lambda self, x, *args, **options: original(self, x + 1e-4, *args, **options)  # noqa: E731
    monkeypatch.setattr(MarginalGridStrategy, "forward", shifted)
    code, _, err = command("check-gp")
    assert code == 1
    assert "SV-DKL, mean; SV-DKL, variance" in err
