"""SGPA's formulae against the joint Gaussian over (u, f), written densely."""

import pytest
import torch
from sgpa_reference import randn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn.functional import sgpa

F64 = torch.float64
N, M, D = 5, 3, 2


class Problem:
    """One head of one example: tokens, inducing inputs, values v_γ, v_β and T, with every matrix of MATH, inverted."""

    def __init__(self):
        points, beta = 0.7 * randn(N, 3), 0.7 * randn(M, 3, seed=1)

        def kernel(a, b):
            return 1.3 * torch.exp(-0.5 * torch.cdist(a / 0.9, b / 0.9).square())

        self.k_qq, self.k_qb, self.k_bb = kernel(points, points), kernel(points, beta), kernel(beta, beta)
        self.value, self.v_beta = randn(N, D, seed=2), randn(M, D, seed=3)
        self.tril = torch.linalg.cholesky(self.k_bb)
        self.t = 0.4 * randn(D, M, M, seed=4).tril(-1) + torch.diag_embed(randn(D, M, seed=5).exp())
        self.s = self.tril @ self.t @ self.t.mT @ self.tril.T
        self.project = self.k_qb @ torch.linalg.inv(self.k_bb)
        self.c = self.k_qq - self.project @ self.k_qb.T

    def prior(self):
        """Covariance of (u, f)."""
        return torch.cat((torch.cat((self.k_bb, self.k_qb.T), 1), torch.cat((self.k_qb, self.k_qq), 1)))

    def joint(self, d):
        """q(u, f) of column d: u ~ N(K_bb v_b, S), f = P u + g, g ~ N(C v, C), by blocks."""
        u_mean = self.k_bb @ self.v_beta[:, d]
        mean = torch.cat((u_mean, self.project @ u_mean + self.c @ self.value[:, d]))
        cross = self.s[d] @ self.project.T
        corner = self.project @ self.s[d] @ self.project.T + self.c
        return mean, torch.cat((torch.cat((self.s[d], cross), 1), torch.cat((cross.T, corner), 1)))

    def features(self):
        return sgpa.features(self.k_qb, self.tril)


def test_mean_and_covariance_are_the_joints_and_maths():
    """f = A u + g with u whitened, against the blocks of the joint and against the formulae of MATH."""
    problem = Problem()
    a = problem.features()
    mean = a @ problem.tril.T @ problem.v_beta + sgpa.conditional_mean(problem.k_qq, a, problem.value)
    inverse = torch.linalg.inv(problem.k_bb)
    formula = problem.k_qq @ problem.value + problem.k_qb @ problem.v_beta
    assert_close(mean, formula - problem.k_qb @ inverse @ problem.k_qb.T @ problem.value)
    for d in range(D):
        covariance = a @ problem.t[d] @ problem.t[d].T @ a.T + sgpa.conditional_covariance(problem.k_qq, a)
        joint_mean, joint_covariance = problem.joint(d)
        assert_close(mean[:, d], joint_mean[M:])
        assert_close(covariance, joint_covariance[M:, M:])
        middle = inverse @ (problem.s[d] - problem.k_bb) @ inverse
        assert_close(covariance, problem.k_qq + problem.k_qb @ middle @ problem.k_qb.T)


def test_the_two_kl_sum_to_that_of_the_joint_over_u_and_f():
    problem = Problem()
    mean = sgpa.conditional_mean(problem.k_qq, problem.features(), problem.value)
    total, whitened, zero = 0.0, 0.0, torch.zeros(N + M, dtype=F64)
    for d in range(D):
        posterior = MultivariateNormal(*problem.joint(d))
        total += kl_divergence(posterior, MultivariateNormal(zero, problem.prior()))
        q = MultivariateNormal(problem.tril.T @ problem.v_beta[:, d], scale_tril=problem.t[d])
        whitened += kl_divergence(q, MultivariateNormal(torch.zeros(M, dtype=F64), torch.eye(M, dtype=F64)))
    assert_close(whitened + sgpa.local_kl(problem.value[None], mean[None]), total)


def test_conditional_variance_is_the_diagonal_and_stays_positive():
    problem = Problem()
    assert_close(sgpa.conditional_variance(problem.k_qq.diagonal(), problem.features()), problem.c.diagonal())
    on_beta = sgpa.features(problem.k_bb, problem.tril)
    for dtype in (F64, torch.float32):
        diagonal = problem.k_bb.diagonal().to(dtype)
        share = sgpa.conditional_variance(diagonal, (1.001 * on_beta).to(dtype)) / diagonal
        assert ((share > 0) & (share < 2 * torch.finfo(dtype).eps ** 0.75)).all()


@pytest.mark.parametrize("number", [1, 4, 6, 13])
def test_inducing_inputs_are_picked_from_the_stream(number):
    """Vectors of the stream within five standard deviations of the noise, as evenly often as they can be."""
    stream = 10 * randn(2, 3, 4)
    picked = sgpa.pick_inducing(stream, 5, number)
    assert picked.shape == (5, number, 4)
    rows = stream.flatten(0, 1)
    distance = (picked[:, :, None] - rows).abs().amax(-1)
    nearest = distance.argmin(-1)
    assert distance.amin(-1).max() < 5e-2 * rows.std()
    for head in nearest:
        counts = torch.bincount(head, minlength=6)
        assert counts.max() - counts.min() <= 1
    assert number == 6 or len({tuple(sorted(head.tolist())) for head in nearest}) > 1
    assert len(picked.flatten(0, 1).unique(dim=0)) == 5 * number
