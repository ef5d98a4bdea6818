"""Options, input checks, numerical errors and signatures of SGPA."""

import pytest
import torch

from probattn import NumericalError
from probattn.attention import sgpa_forms

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 7}, "multiple of heads"),
        ({"inducing": 0}, "positive number, or None.*got 0"),
        ({"inducing": -2}, "positive number, or None.*got -2"),
        ({"draws": "mean"}, "marginal, joint, got 'mean'"),
        ({"kernel": "cosine"}, "rbf, ard, exponential, got 'cosine'"),
        ({"prior": "cauchy"}, "normal, laplace, student_t"),
        ({"inducing": None, "prior": "laplace"}, "no global site"),
    ],
)
def test_bad_options_are_named(sgpa, options, message):
    with pytest.raises(ValueError, match=message):
        sgpa.make(**options)


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (randn(2, 5, 5), None, "project x first"),
        (randn(5, 6), None, "batch, tokens, 6"),
        (randn(2, 5, 6), torch.ones(2, 4).bool(), "boolean mask"),
        (randn(2, 5, 6), torch.ones(2, 5), "boolean mask"),
        (randn(2, 5, 6), torch.tensor([[True] * 5, [False] * 5]), r"rows \[1\]"),
    ],
)
def test_bad_input_is_named(sgpa, x, mask, message):
    with pytest.raises(ValueError, match=message):
        sgpa.make()(x, mask)


@pytest.mark.parametrize(
    ("broken", "what"), [("x", "kernel of the tokens"), ("form.inducing", "K_ββ"), ("query_value.weight", "values")]
)
def test_broken_numbers_are_errors_that_name_layer_and_matrix(sgpa, broken, what):
    model, _ = sgpa.build()
    x, layer = randn(2, 5, 6), model.network.layers[1]
    with torch.no_grad():
        if broken == "x":
            layer.query_value.weight[0, 0] = torch.nan
        elif broken == "form.inducing":
            layer.form.inducing[0, 0, 0] = torch.nan
        else:
            layer.query_value.weight[-1, 0] = torch.nan
    with pytest.raises(NumericalError, match=rf"SGPAttention 'network\.layers\.1'.*{what}"):
        model(x)


def test_an_exponential_kernel_that_overflows_at_one_inducing_input_is_an_error_and_not_a_dropped_input(sgpa):
    layer = sgpa.make(kernel="exponential").float()
    with torch.no_grad():
        layer.form.inducing[0, 0] *= 60
    beta = layer.inducing_points()
    assert torch.isinf(layer.kernel(beta, beta)).any()
    with pytest.raises(NumericalError, match="K_ββ.*NaN or Inf"):
        layer(torch.randn(2, 5, 6))


@pytest.mark.filterwarnings("ignore::probattn.JitterWarning")
def test_joint_draws_survive_inducing_inputs_that_explain_every_token(sgpa):
    """C is then rounding about 0, with eigenvalues below it: what it may be moved by is a share of the kernel."""
    for seed in range(3):
        layer = sgpa.make(seed=seed, draws="joint", inducing=16).float()
        x = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(seed))
        layer.initialise(x)
        with torch.no_grad():
            layer.kernel.log_lengthscale += 2.0
        _, posterior = sgpa.law(sgpa.run(layer, x))
        assert posterior.covariance.tril.isfinite().all()
        assert posterior.variance.max() < 0.1


def test_signatures_differ_wherever_the_program_does(sgpa):
    variants = [{}, {"inducing": 4}, {"inducing": None}, {"draws": "joint"}, {"kernel": "rbf"}, {"prior": "laplace"}]
    signatures = [tuple(sorted(sgpa.make(**options).signature().items())) for options in variants]
    assert len(set(signatures)) == len(variants)


@pytest.mark.parametrize("which", ["mean", "spread"])
def test_marginals_that_are_not_finite_are_refused_by_name(which):
    mean, scale = torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3)
    {"mean": mean, "spread": scale}[which][0, 1, 2] = torch.inf
    with pytest.raises(NumericalError, match=rf"the {which} of q\(f\): NaN or Inf"):
        sgpa_forms._marginals(mean, torch.ones_like(scale), scale, torch.zeros(1))
