"""Likelihoods against torch's losses and explicit loops."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

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

F64 = torch.float64
LIKELIHOODS = [
    (Categorical(), (4, 3), ()),
    (Bernoulli(), (4, 3), (3,)),
    (Gaussian(0.7), (4, 3), (3,)),
    (HeteroscedasticGaussian(), (4, 6), (3,)),
    (StudentT(4.0, 0.7), (4, 3), (3,)),
    (StudentT(4.0, learn_df=True), (4, 3), (3,)),
    (Poisson(), (4, 3), (3,)),
    (NegativeBinomial(2.0), (4, 3), (3,)),
    (Ordinal(4), (4, 1), ()),
    (TokenCategorical(), (4, 5, 3), (5,)),
    (PerToken(HeteroscedasticGaussian()), (4, 5, 6), (5, 3)),
    (PerToken(Poisson()), (4, 5, 3), (5, 3)),
    (PerToken(Ordinal(3)), (4, 5, 1), (5,)),
]


def test_categorical_is_the_cross_entropy_of_each_example_and_draw():
    outputs, labels = torch.randn(2, 6, 3, dtype=F64), torch.randint(3, (6,))
    log_prob = Categorical()(outputs).log_prob(labels)
    for draw in range(2):
        for example in range(6):
            by_hand = outputs[draw, example, labels[example]] - outputs[draw, example].exp().sum().log()
            torch.testing.assert_close(log_prob[draw, example], by_hand)


def test_bernoulli_is_the_binary_cross_entropy_summed_over_labels():
    outputs, labels = torch.randn(6, 4, dtype=F64), torch.randint(2, (6, 4)).to(F64)
    by_hand = [
        sum(math.log(p if label else 1 - p) for p, label in zip(row.sigmoid().tolist(), given.tolist(), strict=True))
        for row, given in zip(outputs, labels, strict=True)
    ]
    torch.testing.assert_close(Bernoulli()(outputs).log_prob(labels), torch.tensor(by_hand, dtype=F64))


def test_normal_has_the_log_density_of_its_noise_which_is_learned():
    likelihood = Gaussian(0.3).double()
    outputs, targets = torch.randn(6, 2, dtype=F64), torch.randn(6, 2, dtype=F64)
    log_prob = likelihood(outputs).log_prob(targets)
    scale = likelihood.log_scale.exp()
    by_hand = -0.5 * ((targets - outputs) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(scale.item(), 0.3, atol=1e-7, rtol=0)
    torch.testing.assert_close(log_prob, by_hand.sum(-1))
    log_prob.sum().backward()
    by_hand_grad = (((targets - outputs) / scale) ** 2 - 1).sum()
    torch.testing.assert_close(likelihood.log_scale.grad, by_hand_grad.detach())


def test_token_categorical_sums_over_the_real_tokens_only():
    outputs, labels = torch.randn(3, 5, 4, dtype=F64), torch.randint(4, (3, 5))
    mask = torch.arange(5) < torch.tensor([[5], [2], [1]])
    log_prob = TokenCategorical()(outputs, mask).log_prob(labels)
    for example, length in enumerate((5, 2, 1)):
        loss = F.cross_entropy(outputs[example, :length], labels[example, :length], reduction="sum")
        torch.testing.assert_close(log_prob[example], -loss)
    everything = TokenCategorical()(outputs).log_prob(labels)
    torch.testing.assert_close(everything, -F.cross_entropy(outputs.mT, labels, reduction="none").sum(-1))


def test_outputs_and_labels_at_padding_do_not_matter():
    outputs, labels = torch.randn(3, 5, 4, dtype=F64), torch.randint(4, (3, 5))
    mask = torch.arange(5) < torch.tensor([[4], [2], [3]])
    other = torch.where(mask.unsqueeze(-1), outputs, 100.0).requires_grad_()
    expected = TokenCategorical()(outputs, mask).log_prob(labels)
    actual = TokenCategorical()(other, mask).log_prob(torch.where(mask, labels, 0))
    assert torch.equal(expected, actual)
    actual.sum().backward()
    assert (other.grad[~mask] == 0).all()


@pytest.mark.parametrize("padding", [-100, 4, 255])
def test_labels_at_padding_may_be_no_classes_and_those_of_tokens_may_not(padding):
    outputs, labels = torch.randn(2, 3, 5, 4, dtype=F64), torch.randint(4, (3, 5))
    mask = torch.arange(5) < torch.tensor([[4], [2], [3]])
    given = torch.where(mask, labels, padding)
    for likelihood in (TokenCategorical()(outputs, mask), TokenCategorical()(outputs[0], mask).expand((2, 3))):
        expected = likelihood.log_prob(labels)
        assert torch.equal(likelihood.log_prob(given), expected)
        assert expected.shape == (2, 3)
    given[1, 1] = padding
    with pytest.raises(ValueError, match="support"):
        TokenCategorical()(outputs, mask).log_prob(given)
    with pytest.raises(ValueError, match="support"):
        TokenCategorical()(outputs).log_prob(torch.where(mask, labels, padding))


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, False], [True, True]])])
def test_classes_of_tokens_know_the_energy_of_their_logits(mask):
    outputs = torch.randn(3, 2, 2, 4, dtype=F64)
    tokens = TokenCategorical()(outputs, mask).base_dist.base_dist
    real = torch.ones(2, 2, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(tokens.energy[:, real], -outputs.exp().sum(-1).log()[:, real])


@pytest.mark.parametrize(("likelihood", "shape", "event"), LIKELIHOODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_computed_in_float32(likelihood, shape, event, dtype):
    outputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    distribution = likelihood(outputs)
    labels = distribution.sample()
    assert distribution.event_shape == event
    log_prob = distribution.log_prob(labels)
    assert log_prob.dtype == torch.float32
    assert torch.equal(log_prob, likelihood(outputs.float()).log_prob(labels))


@pytest.mark.parametrize(("likelihood", "shape", "event"), LIKELIHOODS)
def test_float64_outputs_stay_in_float64(likelihood, shape, event):
    distribution = likelihood(torch.randn(shape, dtype=F64))
    assert distribution.log_prob(distribution.sample()).dtype == F64


@pytest.mark.parametrize(("likelihood", "shape", "event"), LIKELIHOODS)
def test_draws_are_batch_dimensions(likelihood, shape, event):
    outputs = torch.randn(2, *shape, dtype=F64)
    mask = torch.rand(shape[:2]) < 0.5 if len(event) and len(shape) == 3 else None
    labels = likelihood(outputs[0]).sample()
    both = likelihood(outputs, mask).log_prob(labels)
    assert both.shape == (2, 4)
    for draw in range(2):
        torch.testing.assert_close(both[draw], likelihood(outputs[draw], mask).log_prob(labels))


# --- Numbers and counts, against scipy


def against(likelihood, outputs, labels, expected):
    """Log probability and gradients; ``expected`` is of each scalar."""
    outputs = outputs.clone().requires_grad_()
    log_prob = likelihood(outputs).log_prob(labels)
    torch.testing.assert_close(log_prob, torch.as_tensor(expected).sum(-1), rtol=1e-6, atol=1e-6)
    log_prob.sum().backward()
    assert (outputs.grad != 0).all()
    for name, parameter in likelihood.named_parameters():
        assert (parameter.grad != 0).all(), name


def test_a_scale_for_each_target():
    likelihood = Gaussian([0.5, 2.0]).double()
    outputs, targets = torch.randn(6, 2, dtype=F64), torch.randn(6, 2, dtype=F64)
    against(likelihood, outputs, targets, stats.norm(outputs, [0.5, 2.0]).logpdf(targets))


def test_heteroscedastic_noise_comes_from_the_outputs_behind_the_means():
    outputs, targets = torch.randn(6, 4, dtype=F64), torch.randn(6, 2, dtype=F64)
    scale = 0.01 + outputs[:, 2:].exp().log1p()
    expected = stats.norm(outputs[:, :2], scale).logpdf(targets)
    against(HeteroscedasticGaussian(0.01), outputs, targets, expected)
    small = HeteroscedasticGaussian(0.01)(torch.full((1, 2), -1e4)).base_dist.scale
    assert small.item() == pytest.approx(0.01)


@pytest.mark.parametrize("df", [0.7, 1.5, 3.0])
def test_student_t_is_scipys(df):
    outputs, targets = torch.randn(6, 2, dtype=F64), 3 * torch.randn(6, 2, dtype=F64)
    against(StudentT(df, 0.6).double(), outputs, targets, stats.t(df, outputs, 0.6).logpdf(targets))
    distribution = StudentT(df, 0.6).double()(outputs)
    assert distribution.mean.isfinite().all() == (df > 1)
    assert distribution.variance.isfinite().all() == (df > 2)


def test_learned_degrees_of_freedom_start_where_they_are_told_and_stay_above_one():
    likelihood = StudentT(2.5, learn_df=True).double()
    assert likelihood.df.item() == pytest.approx(2.5, rel=1e-6)
    outputs, targets = torch.randn(6, 2, dtype=F64), 3 * torch.randn(6, 2, dtype=F64)
    against(likelihood, outputs, targets, stats.t(2.5, outputs, 1.0).logpdf(targets))
    with torch.no_grad():
        likelihood.raw_df.fill_(-30)
    assert 1 < likelihood.df < 1.001


def test_poisson_has_log_rates():
    outputs, counts = 2 * torch.randn(6, 2, dtype=F64), torch.randint(9, (6, 2))
    against(Poisson(), outputs, counts, stats.poisson(outputs.exp()).logpmf(counts))
    assert Poisson()(torch.full((1, 1), -1e4)).log_prob(torch.ones(1, 1)).isfinite().all()


def test_negative_binomial_has_log_means_and_a_concentration():
    outputs, counts = 2 * torch.randn(6, 2, dtype=F64), torch.randint(9, (6, 2))
    likelihood, mean = NegativeBinomial(1.7).double(), outputs.exp()
    against(likelihood, outputs, counts, stats.nbinom(1.7, 1.7 / (1.7 + mean)).logpmf(counts))
    torch.testing.assert_close(likelihood(outputs).mean, mean)
    torch.testing.assert_close(likelihood(outputs).variance, mean + mean**2 / 1.7, rtol=1e-6, atol=0)


# --- Ordered classes


def test_ordinal_probabilities_are_differences_of_cumulative_logits():
    likelihood = Ordinal(5).double()
    with torch.no_grad():
        likelihood.raw_cutpoints.add_(torch.randn(4, dtype=F64))
    outputs = 2 * torch.randn(7, 1, dtype=F64)
    probs = likelihood(outputs).probs.detach()
    for example in range(7):
        below = [0.0, *((c - outputs[example, 0]).sigmoid().item() for c in likelihood.cutpoints.detach()), 1.0]
        for k in range(5):
            assert math.isclose(probs[example, k], below[k + 1] - below[k], rel_tol=1e-9)
    likelihood(outputs).log_prob(torch.arange(7) % 5).sum().backward()
    assert (likelihood.raw_cutpoints.grad != 0).all()


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_ordinal_classes_start_equally_likely_at_0(classes):
    likelihood = Ordinal(classes)
    torch.testing.assert_close(likelihood(torch.zeros(1, 1)).probs, torch.full((1, classes), 1 / classes))
    assert (likelihood.cutpoints.diff() > 0).all()


def test_ordinal_log_probabilities_are_exact_where_differences_vanish():
    """P(y = 1) = σ(c_1 − f) − σ(c_0 − f) is 0 in floats at f = ±60; its logarithm is not."""
    likelihood = Ordinal(3).double()
    low, high = (Decimal(each) for each in likelihood.cutpoints.tolist())
    for f in (-60, 0, 60):
        log_probs = likelihood(torch.tensor([[float(f)]], dtype=F64)).logits[0].tolist()
        with localcontext(prec=80):
            a, b = (1 / (1 + (Decimal(f) - each).exp()) for each in (high, low))
            expected = [float(each.ln()) for each in (b, a - b, 1 - a)]
        assert log_probs == pytest.approx(expected, rel=1e-8, abs=1e-15)


# --- A label per token


def test_numbers_of_tokens_sum_over_the_real_ones_and_padding_may_be_nan():
    likelihood = PerToken(Gaussian(0.5)).double()
    outputs, targets = torch.randn(3, 5, 2, dtype=F64), torch.randn(3, 5, 2, dtype=F64)
    mask = torch.arange(5) < torch.tensor([[5], [2], [1]])
    broken = outputs.where(mask[..., None], math.nan).requires_grad_()
    for given in (targets, targets.where(mask[..., None], math.nan)):
        log_prob = likelihood(broken, mask).log_prob(given)
        for example, length in enumerate((5, 2, 1)):
            by_hand = stats.norm(outputs[example, :length], 0.5).logpdf(targets[example, :length]).sum()
            assert math.isclose(log_prob[example].item(), by_hand, rel_tol=1e-6)
    log_prob.sum().backward()
    assert (broken.grad[~mask] == 0).all()
    assert (broken.grad[mask] != 0).all()
    whole = likelihood(outputs).log_prob(targets)
    torch.testing.assert_close(whole, torch.as_tensor(stats.norm(outputs, 0.5).logpdf(targets)).sum((1, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), "scale must be positive, got 0.0"),
        (lambda: HeteroscedasticGaussian(0), "min_scale"),
        (lambda: HeteroscedasticGaussian()(torch.zeros(2, 3)), "an even number; got 3"),
        (lambda: StudentT(0.0), "df must be positive"),
        (lambda: StudentT(1.0, learn_df=True), "above 1 with learn_df=True; got 1.0"),
        (lambda: StudentT(scale=-1.0), "scale must be positive"),
        (lambda: NegativeBinomial(0.0), "concentration"),
        (lambda: Ordinal(1), "at least two classes, got 1"),
        (lambda: Ordinal(3)(torch.zeros(2, 3)), "one output per example, got 3"),
    ],
)
def test_what_makes_no_likelihood_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float64])
def test_binary_labels_of_any_dtype(dtype):
    outputs, labels = torch.randn(6, 4), torch.randint(2, (6, 4))
    expected = Bernoulli()(outputs).log_prob(labels.float())
    assert torch.equal(Bernoulli()(outputs).log_prob(labels.to(dtype)), expected)
