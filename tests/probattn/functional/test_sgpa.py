"""SGPA's formulae against the joint Gaussian over (u, f), written densely."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn.functional import sgpa

F64 = torch.float64
KINDS = pytest.mark.parametrize("kind", ["ard", "exponential"])
N, M, D = 5, 3, 2


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def kernel(kind, a, b):
    """σ² exp(−½ Σ (a − b)²/ℓ²) or σ² exp(Σ a b/ℓ²) in loops, with ℓ = (0.9, 1.4, 0.7), σ² = 1.3."""
    lengthscale = torch.tensor([0.9, 1.4, 0.7], dtype=F64)
    matrix = torch.empty(len(a), len(b), dtype=F64)
    for i in range(len(a)):
        for j in range(len(b)):
            difference = (((a[i] - b[j]) / lengthscale) ** 2).sum()
            product = (a[i] * b[j] / lengthscale**2).sum()
            matrix[i, j] = 1.3 * (torch.exp(-difference / 2) if kind == "ard" else torch.exp(product))
    return matrix


class Problem:
    """One head of one example: tokens, inducing inputs, values v_γ, v_β and T, with every matrix of MATH, inverted."""

    def __init__(self, kind, seed=0):
        points, beta = 0.7 * randn(N, 3, seed=seed), 0.7 * randn(M, 3, seed=seed + 1)
        self.points, self.beta = points, beta
        self.k_qq, self.k_qb, self.k_bb = (
            kernel(kind, a, b) for a, b in ((points, points), (points, beta), (beta, beta))
        )
        self.value, self.v_beta = randn(N, D, seed=seed + 2), randn(M, D, seed=seed + 3)
        self.tril = torch.linalg.cholesky(self.k_bb)
        self.t = 0.4 * randn(D, M, M, seed=seed + 4).tril(-1) + torch.diag_embed(randn(D, M, seed=seed + 5).exp())
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


@KINDS
def test_mean_and_covariance_are_the_joints_and_maths(kind):
    """f = A u + g with u whitened, against the blocks of the joint and against the formulae of MATH."""
    problem = Problem(kind)
    a = problem.features()
    mean = a @ problem.tril.T @ problem.v_beta + sgpa.conditional_mean(problem.k_qq, a, problem.value)
    k_bb_inverse = torch.linalg.inv(problem.k_bb)
    formula = (
        problem.k_qq @ problem.value
        - problem.k_qb @ k_bb_inverse @ problem.k_qb.T @ problem.value
        + problem.k_qb @ problem.v_beta
    )
    assert_close(mean, formula)
    for d in range(D):
        covariance = a @ problem.t[d] @ problem.t[d].T @ a.T + sgpa.conditional_covariance(problem.k_qq, a)
        joint_mean, joint_covariance = problem.joint(d)
        assert_close(mean[:, d], joint_mean[M:])
        assert_close(covariance, joint_covariance[M:, M:])
        middle = k_bb_inverse @ (problem.s[d] - problem.k_bb) @ k_bb_inverse
        assert_close(covariance, problem.k_qq + problem.k_qb @ middle @ problem.k_qb.T)


@KINDS
def test_the_two_kl_sum_to_that_of_the_joint_over_u_and_f(kind):
    problem = Problem(kind)
    a = problem.features()
    local = sgpa.local_kl(problem.value[None], sgpa.conditional_mean(problem.k_qq, a, problem.value)[None])
    assert_close(local, 0.5 * torch.trace(problem.value.T @ problem.c @ problem.value))
    total, whitened = 0.0, 0.0
    zero = torch.zeros(N + M, dtype=F64)
    for d in range(D):
        t, v = problem.t[d], problem.v_beta[:, d]
        kl_global = 0.5 * (torch.trace(t @ t.T) - torch.logdet(t @ t.T) - M + v @ problem.k_bb @ v)
        kl_local = 0.5 * problem.value[:, d] @ problem.c @ problem.value[:, d]
        mean, covariance = problem.joint(d)
        joint = kl_divergence(MultivariateNormal(mean, covariance), MultivariateNormal(zero, problem.prior()))
        assert_close(joint, kl_global + kl_local)
        total += joint
        posterior = MultivariateNormal(problem.tril.T @ v, scale_tril=t)
        whitened += kl_divergence(posterior, MultivariateNormal(torch.zeros(M, dtype=F64), torch.eye(M, dtype=F64)))
    assert_close(whitened + local, total)


def test_prior_of_f_is_the_kernel():
    """With u ~ N(0, I) and g ~ N(0, C), A Aᵀ + C = K: nothing is lost to the inducing inputs."""
    problem = Problem("ard")
    a = problem.features()
    assert_close(a @ a.T + sgpa.conditional_covariance(problem.k_qq, a), problem.k_qq)
    assert_close(a @ problem.tril.T, problem.k_qb)


@KINDS
def test_standard_form_is_the_sparse_gp_with_the_tokens_keys(kind):
    """S = L T² Lᵀ over the keys: moments of the layer's form against the formula with K_kk⁻¹, and its KL."""
    problem = Problem(kind)
    k = problem.k_qq
    root, spread = torch.linalg.cholesky(k), randn(N, seed=7).exp()
    s = root @ torch.diag(spread**2) @ root.T
    inverse = torch.linalg.inv(k)
    assert_close(s, k + k @ (inverse @ s @ inverse - inverse) @ k, rtol=1e-6, atol=1e-8)
    expected = 0.0
    for d in range(D):
        posterior = MultivariateNormal(k @ problem.value[:, d], s)
        expected += kl_divergence(posterior, MultivariateNormal(torch.zeros(N, dtype=F64), k))
    assert_close(sgpa.amortised_kl(problem.value[None], (k @ problem.value)[None], spread[None]), expected)


def test_batches_heads_and_draws_are_the_loops():
    problems = [[Problem("ard", 10 * b + h) for h in range(3)] for b in range(2)]
    tril = torch.stack([problem.tril for problem in problems[0]])
    k_qq, k_qb, value = (
        torch.stack([torch.stack([getattr(p, name) for p in row]) for row in problems])
        for name in ("k_qq", "k_qb", "value")
    )
    a = sgpa.features(k_qb, tril)
    mean = sgpa.conditional_mean(k_qq, a, value)
    spread = randn(2, 3, N).exp()
    for b in range(2):
        for h in range(3):
            p, alone = problems[b][h], sgpa.features(k_qb[b, h], tril[h])
            assert_close(alone @ tril[h].T, k_qb[b, h])
            assert_close(a[b, h], alone)
            assert_close(mean[b, h], sgpa.conditional_mean(p.k_qq, alone, p.value))
            assert_close(sgpa.conditional_covariance(k_qq, a)[b, h], p.k_qq - alone @ alone.T)
        each = sum(sgpa.local_kl(value[b, h][None], mean[b, h][None]) for h in range(3))
        assert_close(sgpa.local_kl(value, mean)[b], each)
        each = sum(sgpa.amortised_kl(value[b, h][None], mean[b, h][None], spread[b, h][None]) for h in range(3))
        assert_close(sgpa.amortised_kl(value, mean, spread)[b], each)


def test_conditional_variance_is_the_diagonal_and_stays_positive():
    problem = Problem("ard")
    a = problem.features()
    assert_close(sgpa.conditional_variance(problem.k_qq.diagonal(), a), problem.c.diagonal())
    on_beta = sgpa.features(problem.k_bb, problem.tril)
    for dtype, share in ((F64, 1e-12), (torch.float32, 1e-6)):
        variance = sgpa.conditional_variance(problem.k_bb.diagonal().to(dtype), (1.001 * on_beta).to(dtype))
        assert_close(variance, share * problem.k_bb.diagonal().to(dtype))


def test_gradcheck():
    problem = Problem("ard")
    tensors = (problem.k_qb[None, None], problem.tril[None], problem.k_qq[None, None], problem.value[None, None])
    inputs = tuple(x.clone().requires_grad_() for x in (*tensors, randn(1, 1, N, seed=7).exp()))

    def function(k_qb, tril, k_qq, value, spread):
        a = sgpa.features(k_qb, tril.tril())
        mean = sgpa.conditional_mean(k_qq, a, value)
        return (
            mean,
            sgpa.conditional_covariance(k_qq, a),
            sgpa.conditional_variance(k_qq.diagonal(dim1=-2, dim2=-1), a),
            sgpa.local_kl(value, mean),
            sgpa.amortised_kl(value, mean, spread),
        )

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("number", [1, 4, 6, 13])
def test_inducing_inputs_are_picked_from_the_stream(number):
    """Vectors of the stream within five standard deviations of the noise, as evenly often as they can be."""
    stream = 10 * randn(2, 3, 4)
    torch.manual_seed(0)
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
