"""Likelihoods against torch's losses and explicit loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from probattn.models import Bernoulli, Categorical, TokenCategorical
from probattn.models.likelihoods import Gaussian

F64 = torch.float64
LIKELIHOODS = [
    (Categorical(), (4, 3), ()),
    (Bernoulli(), (4, 3), (3,)),
    (Gaussian(0.7), (4, 3), (3,)),
    (TokenCategorical(), (4, 5, 3), (5,)),
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
