"""Likelihoods against SciPy, torch's losses and explicit loops."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
import torch.nn.functional as F
from float64 import F64, randn64, tensor64
from scipy import stats
from torch.testing import assert_close

from probattn.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    NegativeBinomial,
    Ordinal,
    PerToken,
    Poisson,
    StudentT,
    TokenCategorical,
)

NUMBERS, COUNTS = 3 * randn64(6, 2), torch.randint(9, (6, 2))
# Likelihood, outputs of each target, labels, their log density by SciPy given the outputs.
SCALAR = {
    "bernoulli": (Bernoulli(), 1, COUNTS % 2, lambda f, y: stats.bernoulli(f.sigmoid()).logpmf(y)),
    "gaussian": (Gaussian(0.3), 1, NUMBERS, lambda f, y: stats.norm(f, 0.3).logpdf(y)),
    "scales": (Gaussian([0.5, 2.0]), 1, NUMBERS, lambda f, y: stats.norm(f, [0.5, 2.0]).logpdf(y)),
    "heteroscedastic": (
        HeteroscedasticGaussian(0.01),
        2,
        NUMBERS,
        lambda f, y: stats.norm(f[:, :2], 0.01 + f[:, 2:].exp().log1p()).logpdf(y),
    ),
    "student-t": (StudentT(0.7, 0.6), 1, NUMBERS, lambda f, y: stats.t(0.7, f, 0.6).logpdf(y)),
    "learned-df": (
        StudentT(2.5, 0.6, learn_df=True),
        1,
        NUMBERS,
        lambda f, y: stats.t(2.5, f, 0.6).logpdf(y),
    ),
    "poisson": (Poisson(), 1, COUNTS, lambda f, y: stats.poisson(f.exp()).logpmf(y)),
    "counts": (
        NegativeBinomial(1.7),
        1,
        COUNTS,
        lambda f, y: stats.nbinom(1.7, 1.7 / (1.7 + f.exp())).logpmf(y),
    ),
}
SHAPES = [  # likelihood, shape of its outputs, event shape
    (Categorical(), (4, 3), ()),
    (Bernoulli(), (4, 3), (3,)),
    (Gaussian(0.7), (4, 3), (3,)),
    (HeteroscedasticGaussian(), (4, 6), (3,)),
    (StudentT(4.0, learn_df=True), (4, 3), (3,)),
    (Poisson(), (4, 3), (3,)),
    (NegativeBinomial(2.0), (4, 3), (3,)),
    (Ordinal(4), (4, 1), ()),
    (TokenCategorical(), (4, 5, 3), (5,)),
    (PerToken(HeteroscedasticGaussian()), (4, 5, 6), (5, 3)),
    (PerToken(Ordinal(3)), (4, 5, 1), (5,)),
]


@pytest.mark.parametrize("name", SCALAR)
def test_log_densities_are_sums_of_scipys_over_targets_and_every_parameter_is_learned(name):
    likelihood, width, labels, expected = SCALAR[name]
    likelihood.double()
    outputs = randn64(6, 2 * width)
    given = outputs.clone().requires_grad_()
    log_prob = likelihood(given).log_prob(labels)
    assert_close(log_prob, torch.as_tensor(expected(outputs, labels)).sum(-1), rtol=1e-6, atol=1e-6)
    log_prob.sum().backward()
    assert (given.grad != 0).all()
    assert all((parameter.grad != 0).all() for parameter in likelihood.parameters())


def test_scales_rates_degrees_of_freedom_and_the_variance_of_counts_have_their_bounds_and_formula():
    assert HeteroscedasticGaussian(0.01)(
        torch.full((1, 2), -1e4)
    ).base_dist.scale.item() == pytest.approx(0.01)
    assert Poisson()(torch.full((1, 1), -1e4)).log_prob(torch.ones(1, 1)).isfinite().all()
    likelihood = StudentT(2.5, learn_df=True)
    likelihood.raw_df.data.fill_(-30)
    assert 1 <= likelihood.df < 1.001
    outputs, mean = torch.zeros(1, 1), torch.ones(1, 1)
    assert_close(NegativeBinomial(1.7)(outputs).variance, mean + mean**2 / 1.7)


def test_categorical_is_the_cross_entropy_with_class_weights_and_without():
    outputs, labels = randn64(2, 6, 3), torch.randint(3, (6,))
    weights = tensor64([0.5, 2.0, 3.0])
    for likelihood, weight in ((Categorical(), None), (Categorical(weights).double(), weights)):
        distribution = likelihood(outputs)
        expected = torch.stack(
            [-F.cross_entropy(draw, labels, weight, reduction="none") for draw in outputs]
        )
        assert_close(distribution.log_prob(labels), expected)
        assert_close(distribution.expand((5, 2, 6)).log_prob(labels), expected.expand(5, 2, 6))
        assert_close(distribution.probs, outputs.softmax(-1))
        assert_close(distribution.energy, -outputs.exp().sum(-1).log())


@pytest.mark.parametrize(("likelihood", "shape", "event"), SHAPES)
def test_draws_are_batch_dimensions_and_half_precision_is_computed_in_float32(
    likelihood, shape, event
):
    likelihood.float()
    outputs = torch.randn(2, *shape)
    mask = torch.rand(shape[:2]) < 0.5 if len(event) and len(shape) == 3 else None
    labels = likelihood(outputs[0]).sample()
    both = likelihood(outputs, mask).log_prob(labels)
    assert both.shape == (2, 4)
    for draw in range(2):
        assert_close(both[draw], likelihood(outputs[draw], mask).log_prob(labels))
    assert likelihood(outputs).event_shape == event
    for dtype in (torch.bfloat16, torch.float16):
        half = likelihood(outputs.to(dtype)).log_prob(labels)
        assert torch.equal(half, likelihood(outputs.to(dtype).float()).log_prob(labels))
        assert half.dtype == torch.float32
    distribution = likelihood.double()(outputs.double())
    assert distribution.log_prob(distribution.sample()).dtype == F64


def test_ordinal_probabilities_are_differences_of_cumulative_logits():
    likelihood = Ordinal(5).double()
    likelihood.raw_cutpoints.data.add_(randn64(4))
    outputs = 2 * randn64(7, 1)
    below = (likelihood.cutpoints - outputs).sigmoid()
    bounds = torch.cat([torch.zeros(7, 1), below, torch.ones(7, 1)], 1)
    assert_close(likelihood(outputs).probs, bounds.diff())
    likelihood(outputs).log_prob(torch.arange(7) % 5).sum().backward()
    assert (likelihood.raw_cutpoints.grad != 0).all()
    for classes in (2, 3, 7):
        assert_close(
            Ordinal(classes)(torch.zeros(1, 1)).probs, torch.full((1, classes), 1 / classes)
        )


def test_ordinal_log_probabilities_are_exact_where_differences_vanish():
    """P(y = 1) = σ(c_1 − f) − σ(c_0 − f) is 0 in floats at f = ±60; its logarithm is not."""
    likelihood = Ordinal(3).double()
    low, high = (Decimal(cutpoint) for cutpoint in likelihood.cutpoints.tolist())
    for f in (-60, 0, 60):
        log_probs = likelihood(tensor64([[float(f)]])).logits[0].tolist()
        with localcontext(prec=80):
            a, b = (1 / (1 + (Decimal(f) - cutpoint).exp()) for cutpoint in (high, low))
            expected = [float(probability.ln()) for probability in (b, a - b, 1 - a)]
        assert log_probs == pytest.approx(expected, rel=1e-8, abs=1e-15)


@pytest.mark.parametrize("padding", [-100, 4, 255])
def test_classes_of_tokens_sum_over_the_real_ones_whatever_stands_at_padding(padding):
    outputs = randn64(2, 3, 5, 4)
    labels = torch.randint(4, (3, 5))
    lengths = (5, 2, 1)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    broken = torch.where(mask[..., None], outputs, 100.0).requires_grad_()
    given = torch.where(mask, labels, padding)
    log_prob = TokenCategorical()(broken, mask).log_prob(given)
    for draw in range(2):
        for example, length in enumerate(lengths):
            tokens = (outputs[draw, example, :length], labels[example, :length])
            assert_close(log_prob[draw, example], -F.cross_entropy(*tokens, reduction="sum"))
    assert torch.equal(
        TokenCategorical()(outputs[0], mask).expand((2, 3)).log_prob(given)[1], log_prob[0]
    )
    log_prob.sum().backward()
    assert (broken.grad[:, ~mask] == 0).all()
    given[1, 1] = padding
    for real in (mask, None):
        with pytest.raises(ValueError, match="support"):
            TokenCategorical()(outputs, real).log_prob(given)


def test_numbers_of_tokens_sum_over_the_real_ones_and_padding_may_be_nan():
    likelihood = PerToken(Gaussian(0.5)).double()
    outputs, targets = randn64(3, 5, 2), randn64(3, 5, 2)
    mask = torch.arange(5) < torch.tensor([[5], [2], [1]])
    expected = torch.as_tensor(stats.norm(outputs, 0.5).logpdf(targets)).sum(-1)
    assert_close(likelihood(outputs).log_prob(targets), expected.sum(-1), rtol=1e-6, atol=0)
    broken = outputs.where(mask[..., None], math.nan).requires_grad_()
    log_prob = likelihood(broken, mask).log_prob(targets.where(mask[..., None], math.nan))
    assert_close(log_prob, (expected * mask).sum(-1), rtol=1e-6, atol=0)
    log_prob.sum().backward()
    assert torch.equal((broken.grad != 0).all(-1), mask)
