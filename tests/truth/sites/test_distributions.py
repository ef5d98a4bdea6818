"""Distributions of local sites at every token: against torch's, under plates, and counted by both
ELBOs."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from float64 import randn64
from sampling import randn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import local_site
from probattn.distributions import ColumnNormal, DiagonalNormal, FullNormal, MarginalsOfJoint
from probattn.functional.gaussian import Dense
from probattn.models.label_distributions import CategoricalWithEnergy

F64 = torch.float64
ELBOS = pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])


def build(seed=0):
    """Batch of 2, 3 heads, 4 tokens, 2 columns, and torch's distribution of each head and
    column."""
    loc, root = randn(2, 3, 4, 2, seed=seed), randn(2, 3, 4, 4, seed=seed + 1)
    tril = torch.linalg.cholesky(root @ root.mT + torch.eye(4, dtype=F64))
    return ColumnNormal(loc, Dense(tril, 4)), MultivariateNormal(
        loc.mT, scale_tril=tril.unsqueeze(2)
    )


def test_loc_and_covariance_broadcast():
    normal = ColumnNormal(randn(5, 1, 3, 4, 2), build()[0].covariance)
    assert normal.batch_shape == (5, 2)
    assert normal.mean.shape == normal.variance.shape == normal.sample().shape == (5, 2, 3, 4, 2)
    x = randn(5, 2, 3, 4, 2, seed=2)
    for s in range(5):
        alone = ColumnNormal(normal.loc[s], normal.covariance)
        assert_close(normal.log_prob(x)[s], alone.log_prob(x[s]))


def marginals():
    """Prior and posterior of independent tokens that stand for a joint law, and the KL of that."""
    mean, scale = randn(2, 1, 3, 2), randn(2, 1, 3, 1, seed=1).exp()
    prior = dist.Normal(torch.zeros_like(mean), scale).to_event(3)
    drawn = dist.Normal(mean, 0.5 * scale).to_event(3)
    return prior, drawn, torch.tensor([0.7, 11.0], dtype=F64, requires_grad=True)


def test_marginals_of_a_joint_are_sampled_and_have_their_own_moments():
    prior, drawn, kl = marginals()
    q = MarginalsOfJoint(drawn, prior, kl)
    torch.manual_seed(0)
    x = q.rsample((4,))
    torch.manual_seed(0)
    assert torch.equal(x, drawn.rsample((4,)))
    assert torch.equal(q.mean, drawn.mean)
    assert torch.equal(q.variance, drawn.variance)
    assert_close(q.log_prob(x) - prior.log_prob(x), kl.expand(4, 2))


@ELBOS
@pytest.mark.parametrize("number", [None, 5])
def test_the_joint_kl_is_exact_under_both_elbos(elbo, number):
    prior, drawn, kl = marginals()
    posterior = MarginalsOfJoint(drawn, prior, kl)

    def run(x):
        with (
            pyro.plate("draws", number or 1, dim=-2),
            pyro.plate("data", 2, dim=-1),
            poutine.scale(scale=1.5),
        ):
            pyro.sample("g", prior, infer=local_site(posterior))

    model, guide = (torch.nn.Identity() for _ in range(2))
    model.forward, guide.forward = run, lambda x: None
    loss = elbo().differentiable_loss(model, guide, torch.zeros(2))
    assert_close(loss.item(), 1.5 * (number or 1) * 11.7)
    loss.backward()
    assert_close(kl.grad, torch.full((2,), 1.5 * (number or 1), dtype=F64))


@pytest.mark.parametrize("shift", [0.0, 7.0, -300.0])
def test_categorical_keeps_the_free_energy_of_its_logits(shift):
    logits = randn(2, 3, 4) + shift
    labels = CategoricalWithEnergy(logits)
    assert_close(labels.energy, -shift - (logits - shift).exp().sum(-1).log(), rtol=1e-12, atol=0)
    assert labels.batch_shape == labels.energy.shape == (2, 3)
    assert_close(labels.expand((5, 2, 3)).energy, labels.energy.expand(5, 2, 3))


@pytest.mark.parametrize("lead", [(), (5,)])
def test_kl_to_a_diagonal_normal_is_that_of_multivariate_normals(lead):
    tril = randn(*lead, 2, 3, 3).tril(-1) + randn(2, 3, seed=1).exp().diag_embed()
    (loc, mean), scale = randn(2, *lead, 2, 3, seed=2), randn(2, 3, seed=3).exp()
    q = dist.MultivariateNormal(loc, scale_tril=tril)
    p = DiagonalNormal(mean, scale)
    whole = dist.MultivariateNormal(mean, scale_tril=scale.diag_embed())
    assert_close(kl_divergence(q, p), kl_divergence(q, whole), rtol=1e-12, atol=1e-12)
    assert_close(p.stddev, whole.stddev, rtol=1e-12, atol=0)
    assert type(p.expand((4, *p.batch_shape))) is DiagonalNormal
    assert_close(p.expand((4, *p.batch_shape)).stddev, whole.stddev.expand(4, *p.batch_shape, 3))


@pytest.mark.parametrize("sample_shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("expanded", [(), (4, 2)])
def test_samples_of_a_full_normal_are_those_of_pytorch(sample_shape, expanded):
    loc, factor = randn64(2, 3), randn64(2, 3, 3).tril()
    tril = factor.diagonal_scatter(factor.diagonal(dim1=-2, dim2=-1).exp(), dim1=-2, dim2=-1)
    ours, theirs = FullNormal(loc, scale_tril=tril), MultivariateNormal(loc, scale_tril=tril)
    if expanded:
        ours, theirs = ours.expand(expanded), theirs.expand(expanded)
    torch.manual_seed(0)
    samples = ours.rsample(sample_shape)
    torch.manual_seed(0)
    assert_close(samples, theirs.rsample(sample_shape))
    assert_close(ours.log_prob(samples), theirs.log_prob(samples))
