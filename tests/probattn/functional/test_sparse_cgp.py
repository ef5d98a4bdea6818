"""Sparse correlated GPs against the linear-Gaussian program of the paper, brute force, and the dense ones."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from probattn.functional import gaussian
from probattn.functional.cgp import CGP
from probattn.functional.gaussian import LowRank
from probattn.functional.sparse_cgp import SparseCGP

SHAPE = BATCH, HEADS = 2, 3
TOKENS, WIDTH, COLUMNS = 5, 3, 2
INDUCING, INDUCING_KEYS = 3, 4
NOISE = torch.tensor([0.3, 0.07, 0.9], dtype=torch.float64)
SCALES = torch.tensor([[1.3, 0.8, 1.0], [0.6, 1.7, 1.0]], dtype=torch.float64)
INDICES = [(b, h) for b in range(BATCH) for h in range(HEADS)]
MASK = torch.tensor([[True, False, True, True, False], [True] * 5])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def identity(n):
    return torch.eye(n, dtype=torch.float64)


def make(**options):
    query, key, latent = (randn(*SHAPE, TOKENS, WIDTH, seed=seed) for seed in range(3))
    value = randn(*SHAPE, TOKENS, COLUMNS, seed=3)
    inducing = {
        "inducing_query": randn(HEADS, INDUCING, WIDTH, seed=4),
        "inducing_key": randn(HEADS, INDUCING_KEYS, WIDTH, seed=5),
    }
    points = {"query": query, "key": key, "latent": latent, "value": value}
    defaults = {"scales": SCALES, "noise": NOISE, "real": None, "count": TOKENS}
    return SparseCGP(**points | inducing | defaults | options)


def dense_like(law):
    names = ["query", "key", "latent", "value", "scales", "noise", "real", "count"]
    return CGP(**{name: getattr(law, name) for name in names})


def kappa(a, b):
    """κ_o entry by entry."""
    return torch.stack([torch.stack([torch.exp(-0.5 * ((x - y) ** 2).sum()) for y in b]) for x in a])


def solve(a, b):
    return torch.linalg.solve(a, b)


class Brute:
    """One head of one example. Each variable of the program is a matrix times standard normals of its own."""

    def __init__(self, law, b, h, rows=slice(None)):
        query, key, latent, value = (t[b, h, rows] for t in (law.query, law.key, law.latent, law.value))
        z_m, z_l = (t[h] if t.dim() == 3 else t[b, h] for t in (law.inducing_query, law.inducing_key))
        (sq, sk), self.noise = law.scales[:, h], law.noise[h]
        sigma, n, m, l = self.noise.sqrt(), len(query), len(z_m), len(z_l)
        self.n, self.columns = n, value.shape[-1]
        self.k_mm, self.k_ll = kappa(z_m, z_m), kappa(z_l, z_l)
        self.k_qm, self.k_om = sq * kappa(query, z_m), kappa(latent, z_m)
        self.k_kl, self.k_ol = sk * kappa(key, z_l), kappa(latent, z_l)
        self.b_m = self.k_mm + self.k_om.T @ self.k_om / self.noise
        self.b_l = self.k_ll + self.k_kl.T @ self.k_kl / self.noise
        sizes = [l, n, n, m, n]
        normals = identity(sum(sizes)).split(sizes)
        z_l = torch.linalg.cholesky(self.k_ll) @ normals[0]
        z_k = self.k_kl @ solve(self.k_ll, z_l) + sigma * normals[1]
        z_o = self.k_ol @ solve(self.k_ll, z_l) + sigma * normals[2]
        spread = self.k_mm @ solve(self.b_m, self.k_mm)  # (55)
        z_m = self.k_mm @ solve(self.b_m, self.k_om.T @ z_o) / self.noise
        z_m = z_m + torch.linalg.cholesky(symmetric(spread)) @ normals[3]
        z_q = self.k_qm @ solve(self.k_mm, z_m) + sigma * normals[4]
        whole = torch.cat([z_o, z_q, z_k])
        self.joint = whole @ whole.T
        self.o, self.q, self.k = slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n)
        self.z_k = value  # (34)
        self.nu, self.predictive = self.given([self.q], [self.k], self.z_k)
        self.seen = torch.cat([self.nu, self.z_k])

    def pick(self, a, b):
        return torch.cat([torch.cat([self.joint[i, j] for j in b], dim=1) for i in a])

    def given(self, of, on, value):
        """Mean and covariance of some blocks given the values of others."""
        gain = solve(self.pick(on, on), self.pick(on, of)).T
        return gain @ value, self.pick(of, of) - gain @ self.pick(on, of)

    def log_marginal(self):
        zero = torch.zeros(2 * self.n, dtype=torch.float64)
        return MultivariateNormal(zero, self.pick([self.q, self.k], [self.q, self.k])).log_prob(self.seen.T).sum()

    def bound(self, loc, covariance):
        """R = log p(ν, z_k) − KL(q(z_o) ‖ p(z_o | ν, z_k)): another way to write it than the code's."""
        mean, exact = self.given([self.o], [self.q, self.k], self.seen)
        q = MultivariateNormal(loc.T, covariance.expand(self.columns, -1, -1))
        return self.log_marginal() - kl_divergence(q, MultivariateNormal(mean.T, symmetric(exact))).sum()


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


def covariance(given):
    return given.factor @ given.factor.mT + torch.diag_embed(given.noise.expand(given.shape))


def guides(law):
    """q(z_o) of each kind; the learned one with a mean and scales of no special value."""
    learned = law.learned(0.3 * randn(*law.value.shape, seed=7), randn(*law.value.shape[:-1], seed=8).abs() + 0.2)
    return {"prior": learned._replace(loc=torch.zeros_like(law.value), covariance=law.prior), "learned": learned}


def test_output_and_predictive_are_those_of_the_conditioned_program():
    law = make()
    for b, h in INDICES:
        brute = Brute(law, b, h)
        assert_close(law.mean[b, h], brute.nu)
        assert_close(law.observed_key[b, h], law.value[b, h])
        assert_close(covariance(law.predictive)[b, h], brute.predictive)
        assert_close(law.predictive.variance()[b, h], brute.predictive.diagonal())


def test_output_and_predictive_are_equations_33_and_65_to_67_as_printed():
    law = make()
    for b, h in INDICES:
        at, s2 = Brute(law, b, h), NOISE[h]
        k_mo, k_lk, k_lo = at.k_om.T, at.k_kl.T, at.k_ol.T
        right = at.k_ol @ torch.linalg.inv(at.b_l) @ k_lk
        left = at.k_qm @ torch.linalg.inv(at.b_m) @ k_mo
        assert_close(law.mean[b, h], left @ right @ law.value[b, h] / s2**2)
        inner = s2 * identity(TOKENS) + at.k_ol @ torch.linalg.inv(at.b_l) @ k_lo
        expected = (
            s2 * identity(TOKENS) + at.k_qm @ torch.linalg.inv(at.b_m) @ at.k_qm.T + left @ inner @ left.T / s2**2
        )
        assert_close(covariance(law.predictive)[b, h], expected)


def test_the_program_has_the_joint():
    """Prior, A_q, A_k, Σ_q and Σ_k, taken from the law one by one, make up the joint covariance of (z_o, z_q, z_k)."""
    law = make()
    eye = identity(TOKENS).expand(*SHAPE, -1, -1)
    p, a_q, a_k = covariance(law.prior), law.means(eye)[0], law.means(eye)[1]
    for b, h in INDICES:
        brute = Brute(law, b, h)
        assert_close(p[b, h], brute.joint[brute.o, brute.o])
        assert_close((a_q @ p @ a_k.mT)[b, h], brute.joint[brute.q, brute.k])
        z_o = randn(TOKENS, 1, seed=4)
        for of, a, spread in ((brute.q, a_q, law.query_covariance), (brute.k, a_k, law.key_covariance)):
            mean, exact = brute.given([of], [brute.o], z_o)
            assert_close(a[b, h] @ z_o, mean)
            assert_close(covariance(spread)[b, h], exact)


def test_tokens_as_inducing_inputs_give_the_dense_mean():
    """Z_m = X_o and Z_ℓ = K: A_q 𝒦_ok (𝒦_k + σ²I)⁻¹ z_k (21)."""
    law = make()
    law = make(inducing_query=law.latent, inducing_key=law.key)
    for b, h in INDICES:
        query, key, latent, value = (t[b, h] for t in (law.query, law.key, law.latent, law.value))
        (sq, sk), noise = SCALES[:, h], NOISE[h] * identity(TOKENS)
        a_q = sq * solve(kappa(latent, latent) + noise, kappa(latent, query)).T
        expected = a_q @ (sk * kappa(latent, key)) @ solve(sk**2 * kappa(key, key) + noise, value)
        assert_close(law.mean[b, h], expected)


def test_all_points_as_inducing_inputs_give_the_dense_predictive_covariance():
    """Z_m ⊇ X_o ∪ Q and Z_ℓ ⊇ X_o ∪ K: the dense V[z_q | z_k] + σ²I."""
    law = make()
    law = make(
        inducing_query=torch.cat([law.latent, law.query], dim=-2),
        inducing_key=torch.cat([law.latent, law.key], dim=-2),
    )
    dense = dense_like(law).predictive.tril
    assert_close(covariance(law.predictive), dense @ dense.mT)
    dense = dense_like(law).prior.tril
    assert_close(covariance(law.prior), dense @ dense.mT)


def test_any_inducing_inputs_give_the_dense_formulae_with_nystroem_matrices():
    law = make()
    for b, h in INDICES:
        at, noise = Brute(law, b, h), NOISE[h] * identity(TOKENS)

        def nystroem(left, middle, right):
            return left @ solve(middle, right.T)

        m_qo, m_o = nystroem(at.k_qm, at.k_mm, at.k_om), nystroem(at.k_om, at.k_mm, at.k_om)
        l_ok, l_k = nystroem(at.k_ol, at.k_ll, at.k_kl), nystroem(at.k_kl, at.k_ll, at.k_kl)
        a_q, a_o = solve(m_o + noise, m_qo.T).T, solve(l_k + noise, l_ok.T).T
        assert_close(law.mean[b, h], a_q @ a_o @ law.value[b, h])
        of_o = nystroem(at.k_ol, at.k_ll, at.k_ol) + noise - a_o @ l_ok.T
        of_q = nystroem(at.k_qm, at.k_mm, at.k_qm) - a_q @ m_qo.T + a_q @ of_o @ a_q.T
        assert_close(covariance(law.predictive)[b, h], of_q + noise)


def test_the_draw_written_out_has_the_same_law():
    """σε₁ + 𝒦_qm(L_m⁻ᵀε₂ + σ⁻² B_m⁻¹ 𝒦_mo(σε₃ + 𝒦_oℓ L_ℓ⁻ᵀε₄)), every ε with a matrix in front."""
    law = make()
    for b, h in INDICES:
        at, s2 = Brute(law, b, h), NOISE[h]
        l_m, l_l = torch.linalg.cholesky(at.b_m), torch.linalg.cholesky(at.b_l)
        down = at.k_qm @ solve(at.b_m, at.k_om.T) / s2
        parts = [
            s2.sqrt() * identity(TOKENS),
            at.k_qm @ solve(l_m.T, identity(INDUCING)),
            down * s2.sqrt(),
            down @ at.k_ol @ solve(l_l.T, identity(INDUCING_KEYS)),
        ]
        assert_close(covariance(law.predictive)[b, h], sum(part @ part.T for part in parts))


def test_draws_have_the_predictive_moments():
    law, number = make(), 40_000
    torch.manual_seed(0)
    x = (law.mean + law.predictive.draw(torch.Size((number, *law.value.shape)))).flatten(-2)
    for b, h in INDICES:
        brute = Brute(law, b, h)
        assert_moments(x[:, b, h], brute.nu.flatten(), torch.kron(brute.predictive, identity(COLUMNS)))
    centred = x - law.mean.flatten(-2)
    across = torch.einsum("si,sj->ij", centred[:, 0, 0], centred[:, 0, 1]) / number  # heads are independent
    assert across.abs().max() < 5 * covariance(law.predictive)[0].max() / number**0.5


def assert_moments(x, loc, expected):
    """Sample mean and covariance ``(draws, n)`` lie within 5 standard errors."""
    number, centred, variance = len(x), x - loc, expected.diagonal()
    assert (centred.mean(0).abs() < 5 * (variance / number).sqrt()).all()
    error = ((variance[:, None] * variance + expected**2) / number).sqrt()
    assert ((centred.T @ centred / number - expected).abs() < 5 * error).all()


def test_regulariser_of_every_guide_bounds_the_log_marginal():
    law = make()
    exact = law.log_marginal()
    for b, h in INDICES:
        assert_close(exact[b, h], Brute(law, b, h).log_marginal())
    for guide in guides(law).values():
        r = law.regulariser(guide)
        assert (r < exact - 0.1).all()
        for b, h in INDICES:
            expected = Brute(law, b, h).bound(guide.loc[b, h], covariance(guide.covariance)[b, h])
            assert_close(r[b, h], expected)


@pytest.mark.parametrize("name", ["prior", "learned"])
def test_draws_agree_with_the_closed_form(name):
    law, number = make(), 20_000
    guide = guides(law)[name]
    torch.manual_seed(0)
    noise = guide.covariance.draw(torch.Size((number, *law.value.shape)))
    z_o = guide.loc + noise
    ratios = law.query_covariance.log_density(law.mean - law.means(z_o)[0])
    ratios = ratios + law.key_covariance.log_density(law.observed_key - law.means(z_o)[1])
    ratios = ratios + law.prior.log_density(z_o) - guide.covariance.log_density(noise)
    error, r = ratios.std(0) / number**0.5, law.regulariser(guide)
    assert (error < 0.02 * r.abs()).all()  # else the next line would say little
    assert ((ratios.mean(0) - r).abs() < 4 * error).all()


def test_posterior_is_that_of_the_conditioned_program():
    law = make()
    loc, given = law.posterior()
    for b, h in INDICES:
        brute = Brute(law, b, h)
        mean, exact = brute.given([brute.o], [brute.k], brute.z_k)
        assert_close(loc[b, h], mean)
        assert_close(covariance(given)[b, h], exact)


def test_output_through_the_posterior_has_the_law_of_the_closed_form():
    """∫ p(z_q | z_o) p(z_o | z_k): mean A_q E[z_o] = ν and covariance Σ_q + A_q C A_qᵀ, the predictive one."""
    law = make()
    loc, given = law.posterior()
    a_q = law.means(identity(TOKENS).expand(*SHAPE, -1, -1))[0]
    assert_close(law.means(loc)[0], law.mean)
    through = covariance(law.query_covariance) + a_q @ covariance(given) @ a_q.mT
    assert_close(through, covariance(law.predictive))


def test_each_draw_from_the_posterior_gives_the_evidence_of_the_keys():
    """log p(z_k | z_o) + log p(z_o) − log q(z_o) = log p(z_k), whatever z_o (Bayes)."""
    law = make()
    loc, given = law.posterior()
    torch.manual_seed(0)
    z_o = loc + given.draw(torch.Size((20, *law.value.shape)))
    ratio = law.key_covariance.log_density(law.observed_key - law.means(z_o)[1])
    ratio = ratio + law.prior.log_density(z_o) - given.log_density(z_o - loc)
    for b, h in INDICES:
        brute = Brute(law, b, h)
        zero, keys = torch.zeros(TOKENS, dtype=torch.float64), symmetric(brute.joint[brute.k, brute.k])
        assert_close(ratio[:, b, h], MultivariateNormal(zero, keys).log_prob(brute.z_k.T).sum().expand(20))


def test_draws_of_the_canonical_process_broadcast():
    """Draws lead the batch of the law: each is what it is alone, in means and densities."""
    law = make()
    loc, given = law.posterior()
    torch.manual_seed(0)
    z_o = loc + given.draw(torch.Size((3, 2, *law.value.shape)))
    density = given.log_density(z_o - loc)
    for s in range(3):
        for mean, one in zip(law.means(z_o), law.means(z_o[s, 1]), strict=True):
            assert_close(mean[s, 1], one)
        assert_close(density[s, 1], given.log_density(z_o[s, 1] - loc))


@pytest.mark.parametrize("garbage", [0.0, -30.0])
def test_padding_counts_nothing(garbage):
    """Whatever stands at padding, everything is that of the real tokens alone."""
    whole, real = make(), MASK.unsqueeze(-2)
    keep = real.unsqueeze(-1)
    points = {name: getattr(whole, name).where(keep, garbage) for name in ("query", "key", "latent")}
    value = whole.value.where(keep, 0.0)
    law = make(**points, value=value, real=real, count=MASK.sum(-1, keepdim=True, dtype=torch.float64))
    loc, scale = 0.3 * randn(*value.shape, seed=7).where(keep, 0.0), randn(*SHAPE, TOKENS, seed=8).abs() + 0.2
    learned = law.learned(loc, scale.where(real, 1.0))
    prior = learned._replace(loc=torch.zeros_like(loc), covariance=law.prior)
    torch.manual_seed(0)
    loc_given, given = law.posterior()
    drawn = {of: of.draw(value.shape) for of in (law.predictive, law.prior, learned.covariance, given)}
    for b, h in INDICES:
        rows = MASK[b].nonzero().flatten()
        brute, pairs = Brute(law, b, h, rows), (rows[:, None], rows[None])
        assert_close(law.mean[b, h, rows], brute.nu)
        assert_close(law.mean[b, h, ~MASK[b]], torch.zeros_like(law.mean[b, h, ~MASK[b]]))
        assert_close(covariance(law.predictive)[b, h][pairs], brute.predictive)
        mean, exact = brute.given([brute.o], [brute.k], brute.z_k)
        assert_close(loc_given[b, h, rows], mean)
        assert_close(covariance(given)[b, h][pairs], exact)
        assert_close(law.log_marginal()[b, h], brute.log_marginal())
        p = brute.joint[brute.o, brute.o]
        assert_close(covariance(law.prior)[b, h][pairs], p)
        assert_close(law.regulariser(prior)[b, h], brute.bound(torch.zeros_like(brute.nu), p))
        spread = covariance(learned.covariance)[b, h][pairs]
        assert_close(law.regulariser(learned)[b, h], brute.bound(loc[b, h, rows], spread))
        for of, draw in drawn.items():
            assert (draw[b, h, ~MASK[b]] == 0).all()
            exact = MultivariateNormal(torch.zeros(len(rows), dtype=torch.float64), covariance(of)[b, h][pairs])
            assert_close(of.log_density(draw)[b, h], exact.log_prob(draw[b, h, rows].T).sum())


def test_leading_dimensions_broadcast():
    whole = make()
    points = {name: getattr(whole, name) for name in ("query", "key", "latent", "value")}
    law = make(**{name: torch.stack([point, point.flip(0)]) for name, point in points.items()})
    both = {"mean": whole.mean, "log_marginal": whole.log_marginal(), "r": whole.regulariser(guides(whole)["prior"])}
    assert_close(law.mean, torch.stack([both["mean"], both["mean"].flip(0)]))
    assert_close(law.log_marginal(), torch.stack([both["log_marginal"], both["log_marginal"].flip(0)]))
    assert_close(law.regulariser(guides(law)["prior"]), torch.stack([both["r"], both["r"].flip(0)]))


def test_gradients():
    tensors = [randn(1, 1, 3, 2, seed=seed) for seed in range(4)] + [SCALES[:, :1], NOISE[:1]]
    tensors += [randn(1, 2, 2, seed=9), randn(1, 2, 2, seed=10), randn(1, 1, 3, 2, seed=4)]
    tensors += [randn(1, 1, 3, seed=5).abs() + 0.3]
    names = ["query", "key", "latent", "value", "scales", "noise", "inducing_query", "inducing_key"]
    mask = torch.tensor([[True, False, True]])

    def function(*tensors):
        *points, loc, scale = tensors
        outputs = []
        for real, count in ((None, 3), (mask.unsqueeze(-2), mask.sum(-1, keepdim=True, dtype=torch.float64))):
            keep = torch.ones(3, 1).bool() if real is None else real.unsqueeze(-1)
            fields = dict(zip(names, points, strict=True))
            fields["value"] = fields["value"].where(keep, 0.0)
            law = SparseCGP(**fields, real=real, count=count)
            guide = law.learned(loc.where(keep, 0.0), scale.where(keep.squeeze(-1), 1.0))
            outputs += [law.mean, law.log_marginal(), law.regulariser(guide), law.predictive.variance()]
            given = law.posterior()
            outputs += [given.loc, given.covariance.variance(), *law.means(given.loc)]
            outputs += [law.regulariser(guide._replace(covariance=law.prior))]
        return tuple(outputs)

    assert torch.autograd.gradcheck(function, [tensor.detach().clone().requires_grad_() for tensor in tensors])


class NoSquare(TorchDispatchMode):
    """Fails where an operation, in the backward pass too, makes a tensor with N rows and N columns, or N² entries."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.seen = tokens, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor):
                self.seen += 1
                long = sum(size >= self.tokens for size in tensor.shape)
                fine = long < 2 and tensor.numel() < self.tokens**2
                assert fine, f"{function} made {tuple(tensor.shape)}"
        return output


@pytest.mark.parametrize("masked", [False, True])
def test_nothing_is_quadratic_in_the_number_of_tokens(masked):
    tokens, width = 4096, 4
    points = [torch.randn(1, 2, tokens, width, requires_grad=True) for _ in range(4)]
    inducing = [torch.randn(2, 8, width, requires_grad=True) for _ in range(2)]
    real = torch.arange(tokens).expand(1, 1, -1) < 4000 if masked else None
    count = torch.tensor([[4000.0]]) if masked else tokens
    names = ["query", "key", "latent", "value", "inducing_query", "inducing_key"]
    fields = dict(zip(names, points + inducing, strict=True))
    with NoSquare(tokens) as watch:
        if masked:
            fields["value"] = fields["value"].where(real.unsqueeze(-1), 0.0)
        law = SparseCGP(**fields, scales=torch.ones(2, 2), noise=torch.full((2,), 0.25), real=real, count=count)
        loss = law.mean.square().sum() + law.predictive.draw(law.value.shape).square().sum()
        loss = loss + law.log_marginal().sum() + sum(law.regulariser(guide).sum() for guide in guides32(law))
        loc, given = law.posterior()
        z_o = loc + given.draw(law.value.shape)
        loss = loss + given.log_density(z_o - loc).sum() + gaussian.kl_divergence(loc, given, law.prior).sum()
        loss = loss + law.key_covariance.log_density(law.observed_key - law.means(z_o)[1]).sum()
        loss = loss + (law.means(z_o)[0] + law.query_covariance.draw(law.value.shape)).square().sum()
        loss.backward()
    assert watch.seen > 500
    assert all(tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0 for tensor in points + inducing)


def guides32(law):
    learned = law.learned(torch.zeros_like(law.value), torch.ones_like(law.value[..., 0]))
    return [learned, learned._replace(covariance=law.prior)]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_watch_for_squares_sees_both_passes(where):
    """Else the test above could not fail."""
    x = torch.randn(8, 2, requires_grad=True)
    with NoSquare(8):
        y = x.square()
        if where == "forward":
            with pytest.raises(AssertionError, match="made"):
                _ = y @ y.mT
        else:
            y.register_hook(lambda gradient: (gradient @ gradient.mT) @ gradient)
            with pytest.raises(AssertionError, match="made"):
                y.sum().backward()


def test_float32_at_the_papers_noise():
    """At σ = 0.1 and 64 tokens the whitened factors hold in float32 (`JitterWarning` is an error here)."""
    points = {name: randn(1, 2, 64, 4, seed=seed) for seed, name in enumerate(["query", "key", "latent", "value"])}
    inducing = {"inducing_query": randn(2, 16, 4, seed=5), "inducing_key": randn(2, 16, 4, seed=6)}
    rest = {"scales": torch.ones(2, 2), "noise": torch.full((2,), 0.01)}
    exact = SparseCGP(**{k: v.double() for k, v in (points | inducing | rest).items()}, real=None, count=64)
    single = SparseCGP(**{k: v.float() for k, v in (points | inducing | rest).items()}, real=None, count=64)
    assert_close(single.mean.double(), exact.mean, atol=2e-3, rtol=2e-3)
    assert_close(single.predictive.variance().double(), exact.predictive.variance(), atol=2e-3, rtol=2e-3)
    assert_close(single.log_marginal().double(), exact.log_marginal(), atol=0.0, rtol=2e-3)


def random_low_rank(seed):
    law = LowRank(randn(*SHAPE, 4, 2, seed=seed), randn(*SHAPE, 4, seed=seed + 10).abs() + 0.2, None, 4)
    return covariance(law), law


def test_low_rank_covariance_against_dense_matrices():
    matrix, law = random_low_rank(0)
    x, inner = randn(*SHAPE, 4, 2, seed=2), randn(*SHAPE, 2, 2, seed=4)
    j = inner @ inner.mT
    assert law.shape == (*SHAPE, 4)
    assert_close(law.variance(), matrix.diagonal(dim1=-2, dim2=-1))
    assert_close(law.log_det(), torch.logdet(matrix))
    assert_close(law.quadratic(x), (x * solve(matrix, x)).sum((-2, -1)))
    exact = MultivariateNormal(torch.zeros(4, dtype=torch.float64), matrix[..., None, :, :])
    assert_close(law.log_density(x), exact.log_prob(x.mT).sum(-1))
    assert_close(law.between(x), x.mT @ matrix @ x)
    expected = solve(matrix, law.factor @ j @ law.factor.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert_close(law.explained(j), expected)


def test_divergence_of_low_rank_covariances():
    (p_matrix, p), (q_matrix, q), loc = random_low_rank(0), random_low_rank(1), randn(*SHAPE, 4, 2, seed=2)
    p_law = MultivariateNormal(torch.zeros(4, dtype=torch.float64), p_matrix[..., None, :, :])
    q_law = MultivariateNormal(loc.mT, q_matrix[..., None, :, :].expand(*SHAPE, 2, 4, 4))
    assert_close(gaussian.kl_divergence(loc, q, p), kl_divergence(q_law, p_law).sum(-1))
    copy = LowRank(p.factor, p.noise, None, 4)
    assert_close(gaussian.kl_divergence(loc, p, p), gaussian.kl_divergence(loc, copy, p))


def test_learned_guide_starts_at_the_prior_and_moves_each_token_on_its_own():
    law = make()
    start = law.learned(torch.zeros_like(law.value), torch.ones_like(law.value[..., 0])).covariance
    assert_close(covariance(start), covariance(law.prior))
    loc, scale = randn(*law.value.shape, seed=7), randn(*law.value.shape[:-1], seed=8).abs() + 0.2
    moved, t = law.learned(loc, scale), torch.diag_embed(scale)
    assert_close(moved.loc, loc)
    assert_close(covariance(moved.covariance), t @ covariance(law.prior) @ t)


def test_draws_of_a_low_rank_covariance():
    matrix, law = random_low_rank(0)
    torch.manual_seed(0)
    x = law.draw(torch.Size((40_000, *SHAPE, 4, 2))).flatten(-2)
    for b, h in INDICES:
        assert_moments(x[:, b, h], torch.zeros(8, dtype=torch.float64), torch.kron(matrix[b, h], identity(2)))
