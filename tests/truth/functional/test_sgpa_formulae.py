"""SGPA's formulae against the joint Gaussian over (u, f), written densely."""

from types import SimpleNamespace

import pytest
import torch
from float64 import F64, eye64, zeros64
from sampling import randn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn.functional import sgpa

N, M, D = 5, 3, 2


@pytest.fixture
def head():
    """One head of one example: tokens, inducing inputs, values v_γ, v_β and T, with the matrices of
    MATH, inverted."""
    points = 0.7 * randn(M + N, 3)
    whole = 1.3 * torch.exp(-0.5 * torch.cdist(points / 0.9, points / 0.9).square())
    k_bb, k_qb, k_qq = whole[:M, :M], whole[M:, :M], whole[M:, M:]
    tril = torch.linalg.cholesky(k_bb)
    t = 0.4 * randn(D, M, M, seed=4).tril(-1) + randn(D, M, seed=5).exp().diag_embed()
    given = {
        "whole": whole,
        "k_bb": k_bb,
        "k_qb": k_qb,
        "k_qq": k_qq,
        "tril": tril,
        "a": sgpa.features(k_qb, tril),
    }
    s = tril @ t @ t.mT @ tril.T
    project = k_qb @ torch.linalg.inv(k_bb)
    values = randn(M + N, D, seed=2).split([M, N])
    c = k_qq - project @ k_qb.T
    return SimpleNamespace(
        **given, t=t, s=s, project=project, c=c, v_beta=values[0], value=values[1]
    )


def joint(head):
    """Mean ``(D, M + N)`` and covariances of q(u, f): u ~ N(K_bb v_b, S), f = P u + g, g ~ N(C v,
    C)."""
    mix = eye64(M + N)
    mix[M:, :M] = head.project
    mean = mix @ torch.cat((head.k_bb @ head.v_beta, head.c @ head.value))
    return mean.T, mix @ torch.stack([torch.block_diag(s, head.c) for s in head.s]) @ mix.T


def test_the_two_kl_sum_to_that_of_the_joint_over_u_and_f(head):
    mean, zero = sgpa.conditional_mean(head.k_qq, head.a, head.value), zeros64(M + N)
    total = kl_divergence(
        MultivariateNormal(*joint(head)), MultivariateNormal(zero, head.whole)
    ).sum()
    q = MultivariateNormal((head.tril.T @ head.v_beta).T, scale_tril=head.t)
    whitened = kl_divergence(q, MultivariateNormal(zero[:M], eye64(M))).sum()
    assert_close(whitened + sgpa.local_kl(head.value[None], mean[None]), total)


def test_conditional_variance_is_the_diagonal_and_stays_positive(head):
    assert_close(sgpa.conditional_variance(head.k_qq.diagonal(), head.a), head.c.diagonal())
    on_beta = sgpa.features(head.k_bb, head.tril)
    for dtype in (F64, torch.float32):
        diagonal = head.k_bb.diagonal().to(dtype)
        share = sgpa.conditional_variance(diagonal, (1.001 * on_beta).to(dtype)) / diagonal
        assert ((share > 0) & (share < 2 * torch.finfo(dtype).eps ** 0.75)).all()
