"""Closed forms equal GPyTorch's in float64, and a formula that is off by a millionth is detected and named."""

import math
from functools import cached_property

import pytest
import torch
from typer.testing import CliRunner

from probattn.experiments.cli import main
from probattn.experiments.studies.gpytorch_check import COMPONENTS, TOLERANCE, Difference, gp_check
from probattn.functional import kep_svgp, sgpa
from probattn.functional.cgp import CGP
from probattn.functional.sparse_cgp import SparseCGP
from probattn.inference.methods.sv_dkl_gps import MarginalGridStrategy


@pytest.mark.parametrize("seed", [0, 1])
def test_every_quantity_is_gpytorchs(seed):
    before = torch.get_rng_state()
    found = gp_check(seed=seed)
    assert [f"{each.component}: {each.quantity}" for each in found if each.relative > 1e-12] == []
    assert list(dict.fromkeys(each.component for each in found)) == list(COMPONENTS)
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
    "CGP: covariance of z_q given z_o": (property_off, CGP, "query_covariance"),
    "CGP: covariance of z_k given z_o": (property_off, CGP, "key_covariance"),
    "CGP: covariance of z_q given z_k": (property_off, CGP, "predictive"),
    "sparse CGP: mean of z_q": (property_off, SparseCGP, "mean"),
    "sparse CGP: covariance of z_q given z_o": (property_off, SparseCGP, "query_covariance"),
    "sparse CGP: covariance of z_k given z_o": (property_off, SparseCGP, "key_covariance"),
    "sparse CGP: covariance of z_q given z_k": (property_off, SparseCGP, "predictive"),
}


@pytest.mark.parametrize("expected", BROKEN)
def test_a_wrong_formula_is_named(monkeypatch, expected):
    component, _, quantities = expected.partition(": ")
    monkeypatch.setattr("probattn.experiments.studies.gpytorch_check.COMPONENTS", {component: COMPONENTS[component]})
    change, owner, name = BROKEN[expected]
    change(monkeypatch, owner, name)
    assert ", ".join(each.quantity for each in gp_check() if not each.passes) == quantities


def test_wrong_marginals_of_sv_dkl_are_named(monkeypatch):
    monkeypatch.setattr("probattn.experiments.studies.gpytorch_check.COMPONENTS", {"SV-DKL": COMPONENTS["SV-DKL"]})
    original = MarginalGridStrategy.forward

    def changed(self, x, *args, **options):
        return original(self, x + 1e-4, *args, **options)

    monkeypatch.setattr(MarginalGridStrategy, "forward", changed)
    assert [each.quantity for each in gp_check() if not each.passes] == ["mean", "variance"]


def test_nan_does_not_pass():
    assert not Difference("", "", math.nan, math.nan).passes
    assert Difference("", "", 1.0, TOLERANCE).passes


def test_the_command_prints_a_row_a_quantity_and_fails_where_one_is_off(monkeypatch):
    done = CliRunner().invoke(main.app, ["check-gp", "--seed", "3"])
    assert done.exit_code == 0, done.output
    rows = [line for line in done.output.splitlines() if line.startswith("│")]
    assert len(rows) == len(gp_check(seed=3))
    assert "all agree with GPyTorch to a relative 1e-09" in done.output
    property_off(monkeypatch, SparseCGP, "mean")
    done = CliRunner().invoke(main.app, ["check-gp"])
    assert done.exit_code == 1
    assert "these differ from GPyTorch by more than a relative 1e-09: sparse CGP, mean of z_q" in done.output
