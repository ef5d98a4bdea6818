"""Dense correlated GPs against brute-force conditioning of the joint of (z_o, z_q, z_k), written from the paper."""

import warnings

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn.functional import gaussian
from probattn.functional.cgp import CGP
from probattn.functional.gaussian import Dense
from probattn.functional.jitter import JitterWarning

SHAPE = BATCH, HEADS = 2, 3
TOKENS, WIDTH, COLUMNS = 5, 3, 2
NOISE = torch.tensor([0.3, 0.07, 0.9], dtype=torch.float64)
SCALES = torch.tensor([[1.3, 0.8, 1.0], [0.6, 1.7, 1.0]], dtype=torch.float64)
OPTIONS = [{}, {"noisy_canonical": False}, {"noisy_output": False}, {"noisy_canonical": False, "noisy_output": False}]
INDICES = [(b, h) for b in range(BATCH) for h in range(HEADS)]
MASK = torch.tensor([[True, False, True, True, False], [True] * 5])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(tokens=TOKENS, **options):
    query, key, latent = (randn(*SHAPE, tokens, WIDTH, seed=seed) for seed in range(3))
    value = randn(*SHAPE, tokens, COLUMNS, seed=3)
    defaults = {"scales": SCALES, "noise": NOISE, "real": None, "count": tokens}
    return CGP(**{"query": query, "key": key, "latent": latent, "value": value} | defaults | options)


def kappa(a, b):
    """κ_o entry by entry."""
    return torch.stack([torch.stack([torch.exp(-0.5 * ((x - y) ** 2).sum()) for y in b]) for x in a])


class Brute:
    """One head of one example: the joint covariance of (z_o, z_q, z_k) of a column, conditioned by `solve` alone."""

    def __init__(self, law, b, h, rows=slice(None)):
        query, key, latent, value = (t[b, h, rows] for t in (law.query, law.key, law.latent, law.value))
        (sq, sk), noise, n = law.scales[:, h], law.noise[h], len(query)
        eye = torch.eye(n, dtype=torch.float64)
        self.n, self.value, self.columns = n, value, value.shape[-1]
        self.o, self.q, self.k = slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n)
        self.k_o, self.k_q = kappa(latent, latent), sq**2 * kappa(query, query)
        self.k_k, self.k_qk = sk**2 * kappa(key, key), sq * sk * kappa(query, key)
        k_qo, k_ko = sq * kappa(query, latent), sk * kappa(key, latent)
        p = self.k_o + noise * eye if law.noisy_canonical else self.k_o
        q = self.k_q + noise * eye if law.noisy_output else self.k_q
        cross = k_qo @ torch.linalg.solve(p, k_ko.T)
        rows = [(p, k_qo.T, k_ko.T), (k_qo, q, cross), (k_ko, cross.T, self.k_k + noise * eye)]
        self.joint = torch.cat([torch.cat(row, dim=1) for row in rows])
        self.z_k = (self.k_k + noise * eye) @ value
        self.nu, self.predictive = self.given([self.q], [self.k], self.z_k)
        self.seen = torch.cat([self.nu, self.z_k])

    def pick(self, a, b):
        return torch.cat([torch.cat([self.joint[i, j] for j in b], dim=1) for i in a])

    def given(self, of, on, value):
        """Mean and covariance of some blocks given the values of others."""
        gain = torch.linalg.solve(self.pick(on, on), self.pick(on, of)).T
        return gain @ value, self.pick(of, of) - gain @ self.pick(on, of)

    def posterior(self):
        """p(z_o | z_k)."""
        mean, covariance = self.given([self.o], [self.k], self.z_k)
        return mean, symmetric(covariance)

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
    """Σ as a matrix; that of a `Conditional` is what its draws have, as linear maps of all their normals."""
    if isinstance(given, Dense):
        return given.tril @ given.tril.mT
    n = given.shape[-1]
    normals = iter(identity(2 * n).expand(*given.shape[:-1], -1, -1).split(n, dim=-2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "normal_", lambda self: next(normals))
        root = given.draw(torch.Size((*given.shape, 2 * n)))
    return root @ root.mT


def identity(n):
    return torch.eye(n, dtype=torch.float64)


def guides(law):
    """q(z_o) whose R is in closed form; the learned one with a mean and scales of no special value."""
    learned = law.learned(0.3 * randn(*law.value.shape, seed=7), randn(*law.value.shape[:-1], seed=8).abs() + 0.2)
    prior = law.learned(torch.zeros_like(law.value), torch.ones_like(law.value[..., 0]))
    return {"prior": prior._replace(covariance=law.prior), "learned": learned}


@pytest.mark.parametrize("options", OPTIONS)
def test_output_and_predictive_are_those_of_the_conditioned_joint(options):
    law = make(**options)
    for b, h in INDICES:
        brute = Brute(law, b, h)
        assert_close(law.mean[b, h], brute.nu)
        assert_close(law.observed_key[b, h], brute.z_k)
        assert_close(covariance(law.predictive)[b, h], brute.predictive)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_program_has_the_joint(options):
    """Prior, A_q, A_k, Σ_q and Σ_k, taken from the law one by one, make up the joint covariance."""
    law = make(**options)
    eye = torch.eye(TOKENS, dtype=torch.float64).expand(*SHAPE, -1, -1)
    p, a_q, a_k = covariance(law.prior), law.means(eye)[0], law.means(eye)[1]
    for b, h in INDICES:
        brute = Brute(law, b, h)
        assert_close(p[b, h], brute.joint[brute.o, brute.o])
        assert_close((a_q @ p)[b, h], brute.joint[brute.q, brute.o])
        assert_close((a_k @ p)[b, h], brute.joint[brute.k, brute.o])
        assert_close((a_q @ p @ a_k.mT)[b, h], brute.joint[brute.q, brute.k])
        assert_close((a_q @ p @ a_q.mT + covariance(law.query_covariance))[b, h], brute.joint[brute.q, brute.q])
        assert_close((a_k @ p @ a_k.mT + covariance(law.key_covariance))[b, h], brute.joint[brute.k, brute.k])
        z_o = randn(TOKENS, 1, seed=4)
        for of, a, spread in ((brute.q, a_q, law.query_covariance), (brute.k, a_k, law.key_covariance)):
            mean, exact = brute.given([of], [brute.o], z_o)
            assert_close(a[b, h] @ z_o, mean)
            assert_close(covariance(spread)[b, h], exact)


def test_the_two_processes_are_correlated_through_the_canonical_one_only():
    """Cov(z_q, z_k) = 𝒦_qo (𝒦_o + σ²I)⁻¹ 𝒦_ok, which is not 𝒦_qk."""
    law = make()
    eye = torch.eye(TOKENS, dtype=torch.float64).expand(*SHAPE, -1, -1)
    cross = law.means(eye)[0] @ covariance(law.prior) @ law.means(eye)[1].mT
    for b, h in INDICES:
        brute = Brute(law, b, h)
        assert_close(cross[b, h], brute.joint[brute.q, brute.k])
        assert (cross[b, h] - brute.k_qk).abs().max() > 0.1


def test_one_projection_gives_kernel_attention_as_the_noise_vanishes():
    points, value = 2 * randn(*SHAPE, TOKENS, WIDTH), randn(*SHAPE, TOKENS, COLUMNS, seed=3)
    attended = torch.stack([torch.stack([kappa(head, head) for head in example]) for example in points])
    for sigma2 in (1e-1, 1e-3, 1e-9):
        noise = torch.full((HEADS,), sigma2, dtype=torch.float64)
        law = make(query=points, key=points, latent=points, value=value, scales=torch.ones_like(SCALES), noise=noise)
        noisy = attended + sigma2 * torch.eye(TOKENS, dtype=torch.float64)
        assert_close(law.mean, attended @ torch.linalg.solve(noisy, attended @ value))
        # The difference is σ² 𝒦 (𝒦 + σ²I)⁻¹ V, of at most σ² ‖V‖.
        difference = torch.linalg.vector_norm(law.mean - attended @ value)
        assert 0.1 * sigma2 < difference / torch.linalg.vector_norm(value) <= sigma2 * (1 + 1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_regulariser_of_every_guide_bounds_the_log_marginal(options):
    law = make(**options)
    exact = law.log_marginal()
    for guide in guides(law).values():
        r = law.regulariser(guide)
        for b, h in INDICES:
            brute = Brute(law, b, h)
            assert_close(exact[b, h], brute.log_marginal())
            assert_close(r[b, h], brute.bound(guide.loc[b, h], covariance(guide.covariance)[b, h]))
            assert r[b, h] < exact[b, h] - 0.1


def test_regulariser_is_the_expectation_it_is_named_for():
    """E_q[log p(ν | z_o) + log p(z_k | z_o)] − KL, term by term with `torch.distributions` (MATH, section 3)."""
    law = make()
    for guide in guides(law).values():
        r = law.regulariser(guide)
        for b, h in INDICES:
            brute, eye = Brute(law, b, h), torch.eye(TOKENS, dtype=torch.float64)
            c, expected = covariance(guide.covariance)[b, h], 0.0
            for of, seen in ((brute.q, brute.nu), (brute.k, brute.z_k)):
                a, spread = brute.given([of], [brute.o], eye)
                spread = symmetric(spread)
                density = MultivariateNormal((a @ guide.loc[b, h]).T, spread).log_prob(seen.T).sum()
                expected += density - 0.5 * COLUMNS * torch.linalg.solve(spread, a @ c @ a.T).trace()
            q = MultivariateNormal(guide.loc[b, h].T, c)
            p = MultivariateNormal(torch.zeros(TOKENS, dtype=torch.float64), brute.joint[brute.o, brute.o])
            assert_close(r[b, h], expected - kl_divergence(q, p).sum())


def log_ratio(law, guide, number):
    """log p(ν, z_k, z_o) − log q(z_o) at draws of z_o: R one draw at a time (eq. 42), ``(draws, batch, heads)``."""
    torch.manual_seed(0)
    noise = guide.covariance.draw(torch.Size((number, *law.value.shape)))
    z_o = guide.loc + noise
    log_p = law.query_covariance.log_density(law.mean - law.means(z_o)[0])
    log_p = log_p + law.key_covariance.log_density(law.observed_key - law.means(z_o)[1])
    return log_p + law.prior.log_density(z_o) - guide.covariance.log_density(noise)


@pytest.mark.parametrize("name", ["prior", "learned"])
def test_draws_agree_with_the_closed_form(name):
    law = make()
    guide = guides(law)[name]
    ratios = log_ratio(law, guide, 20_000)
    error = ratios.std(0) / 20_000**0.5
    r = law.regulariser(guide)
    assert (error < 0.02 * r.abs()).all()  # else the next line would say little
    assert ((ratios.mean(0) - r).abs() < 4 * error).all()


@pytest.mark.parametrize("options", OPTIONS)
def test_posterior_is_that_of_the_conditioned_joint(options):
    """Its mean; and covariance, log density, variance and KL to the prior of a class that never factorises it."""
    law = make(**options)
    loc, given = law.posterior()
    x = randn(*law.value.shape, seed=6)
    density, divergence = given.log_density(x), gaussian.kl_divergence(loc, given, law.prior)
    for b, h in INDICES:
        mean, exact = Brute(law, b, h).posterior()
        zero = torch.zeros(TOKENS, dtype=torch.float64)
        assert_close(loc[b, h], mean)
        assert_close(covariance(given)[b, h], exact)
        assert_close(given.variance()[b, h], exact.diagonal())
        assert_close(given.log_det()[b, h], torch.logdet(exact))
        assert_close(density[b, h], MultivariateNormal(zero, exact).log_prob(x[b, h].T).sum())
        q, p = MultivariateNormal(mean.T, exact), MultivariateNormal(zero, covariance(law.prior)[b, h])
        assert_close(divergence[b, h], kl_divergence(q, p).sum())


def test_divergence_of_the_posterior_from_another_prior_than_its_own():
    law, (matrix, other) = make(), random_dense(0, TOKENS)
    loc, given = law.posterior()
    exact = covariance(given).unsqueeze(-3).expand(-1, -1, COLUMNS, -1, -1)
    zero = torch.zeros(TOKENS, dtype=torch.float64)
    expected = kl_divergence(MultivariateNormal(loc.mT, exact), MultivariateNormal(zero, matrix.unsqueeze(-3)))
    assert_close(gaussian.kl_divergence(loc, given, other), expected.sum(-1))


@pytest.mark.parametrize("options", OPTIONS)
def test_output_through_the_posterior_has_the_law_of_the_closed_form(options):
    """∫ p(z_q | z_o) p(z_o | z_k): mean A_q E[z_o] = ν and covariance Σ_q + A_q C A_qᵀ, the predictive one."""
    law = make(**options)
    loc, given = law.posterior()
    a_q = law.means(identity(TOKENS).expand(*SHAPE, -1, -1))[0]
    assert_close(law.means(loc)[0], law.mean)
    through = covariance(law.query_covariance) + a_q @ covariance(given) @ a_q.mT
    assert_close(through, covariance(law.predictive))


@pytest.mark.parametrize("options", OPTIONS)
def test_each_draw_from_the_posterior_gives_the_evidence_of_the_keys(options):
    """log p(z_k | z_o) + log p(z_o) − log q(z_o) = log p(z_k), whatever z_o (Bayes)."""
    law = make(**options)
    loc, given = law.posterior()
    torch.manual_seed(0)
    z_o = loc + given.draw(torch.Size((20, *law.value.shape)))
    assert z_o.std(0).min() > 0.05
    ratio = law.key_covariance.log_density(law.observed_key - law.means(z_o)[1])
    ratio = ratio + law.prior.log_density(z_o) - given.log_density(z_o - loc)
    for b, h in INDICES:
        brute = Brute(law, b, h)
        zero = torch.zeros(TOKENS, dtype=torch.float64)
        evidence = MultivariateNormal(zero, symmetric(brute.joint[brute.k, brute.k])).log_prob(brute.z_k.T).sum()
        assert_close(ratio[:, b, h], evidence.expand(20))


def test_draws_from_the_posterior():
    """As `covariance` reads one draw's map off patched normals, the draws themselves are looked at here."""
    law = make()
    given = law.posterior().covariance
    torch.manual_seed(0)
    x = given.draw(torch.Size((20_000, *law.value.shape)))[:, 1, 2].flatten(1)
    assert_moments(x, torch.zeros(TOKENS * COLUMNS), torch.kron(covariance(given)[1, 2], identity(COLUMNS)))


def test_learned_guide_starts_at_the_prior_and_moves_each_token_on_its_own():
    law = make()
    at_start = law.learned(torch.zeros_like(law.value), torch.ones_like(law.value[..., 0]))
    assert_close(at_start.loc, torch.zeros_like(law.value))
    assert_close(covariance(at_start.covariance), covariance(law.prior))
    loc, scale = randn(*law.value.shape, seed=7), randn(*law.value.shape[:-1], seed=8).abs() + 0.2
    moved = law.learned(loc, scale)
    p, t = covariance(law.prior), torch.diag_embed(scale)
    assert_close(moved.loc, p @ loc)
    assert_close(covariance(moved.covariance), t @ p @ t)
    assert_close(moved.covariance.tril, moved.covariance.tril.tril())


@pytest.mark.parametrize("garbage", [0.0, -30.0])
@pytest.mark.parametrize("options", OPTIONS)
def test_padding_counts_nothing(options, garbage):
    """Whatever stands at padding, everything is that of the real tokens alone."""
    whole, real = make(**options), MASK.unsqueeze(-2)
    keep = real.unsqueeze(-1)
    points = {name: getattr(whole, name).where(keep, garbage) for name in ("query", "key", "latent")}
    value, count = whole.value.where(keep, 0.0), MASK.sum(-1, keepdim=True, dtype=torch.float64)
    law = make(**points, value=value, real=real, count=count, **options)
    loc, scale = 0.3 * randn(*value.shape, seed=7).where(keep, 0.0), randn(*SHAPE, TOKENS, seed=8).abs() + 0.2
    scale = scale.where(real, 1.0)
    learned, posterior = law.learned(loc, scale), law.posterior()
    prior = learned._replace(loc=torch.zeros_like(loc), covariance=law.prior)
    bounds = {name: law.regulariser(guide) for name, guide in (("prior", prior), ("learned", learned))}
    torch.manual_seed(0)
    drawn, z_o = law.predictive.draw(value.shape), posterior.covariance.draw(value.shape)
    for b, h in INDICES:
        rows = MASK[b].nonzero().flatten()
        brute = Brute(law, b, h, rows)
        assert_close(law.mean[b, h, rows], brute.nu)
        assert_close(law.mean[b, h, ~MASK[b]], torch.zeros_like(law.mean[b, h, ~MASK[b]]))
        pairs = rows[:, None], rows[None]
        assert_close(covariance(law.predictive)[b, h][pairs], brute.predictive)
        assert_close(law.predictive.variance()[b, h, rows], brute.predictive.diagonal())
        assert_close(law.log_marginal()[b, h], brute.log_marginal())
        mean, exact = brute.posterior()
        zero = torch.zeros(len(rows), dtype=torch.float64)
        q, p = MultivariateNormal(mean.T, exact), MultivariateNormal(zero, covariance(law.prior)[b, h][pairs])
        assert_close(posterior.loc[b, h, rows], mean)
        assert_close(covariance(posterior.covariance)[b, h][pairs], exact)
        assert (z_o[b, h, ~MASK[b]] == 0).all()
        density = MultivariateNormal(zero, exact).log_prob(z_o[b, h, rows].T).sum()
        assert_close(posterior.covariance.log_density(z_o)[b, h], density)
        divergence = gaussian.kl_divergence(posterior.loc, posterior.covariance, law.prior)[b, h]
        assert_close(divergence, kl_divergence(q, p).sum())
        assert_close(bounds["prior"][b, h], brute.bound(torch.zeros_like(brute.nu), brute.joint[brute.o, brute.o]))
        spread = covariance(learned.covariance)[b, h][pairs]
        assert_close(bounds["learned"][b, h], brute.bound(learned.loc[b, h, rows], spread))
        density = MultivariateNormal(zero, symmetric(brute.predictive)).log_prob(drawn[b, h, rows].T).sum()
        assert_close(law.predictive.log_density(drawn.where(keep, 0.0))[b, h], density)


def test_equal_tokens_need_no_jitter():
    """With the output's noise, Σ_q + σ²I of equal tokens is as good as any (`JitterWarning` is an error here)."""
    points = randn(*SHAPE, 1, WIDTH).expand(-1, -1, TOKENS, -1)
    law = make(query=points, key=points, latent=points)
    for guide in guides(law).values():
        assert (law.regulariser(guide) <= law.log_marginal() + 1e-9).all()
    for b, h in INDICES:
        assert_close(law.log_marginal()[b, h], Brute(law, b, h).log_marginal())


def test_leading_dimensions_broadcast():
    whole = make()
    points = {name: getattr(whole, name) for name in ("query", "key", "latent", "value")}
    more = {name: torch.stack([point, point.flip(0)]) for name, point in points.items()}
    law = make(**more)
    assert law.mean.shape == (2, *SHAPE, TOKENS, COLUMNS)
    assert_close(law.mean, torch.stack([whole.mean, whole.mean.flip(0)]))
    assert_close(law.log_marginal(), torch.stack([whole.log_marginal(), whole.log_marginal().flip(0)]))
    r = whole.regulariser(guides(whole)["prior"])
    assert_close(law.regulariser(guides(law)["prior"]), torch.stack([r, r.flip(0)]))


def test_draws_of_the_canonical_process_broadcast():
    """Draws lead the batch of the law: each is what it is alone, in means, densities and divergence."""
    law, number = make(), 3
    loc, given = law.posterior()
    torch.manual_seed(0)
    z_o = loc + given.draw(torch.Size((number, 2, *law.value.shape)))
    assert z_o.shape == (number, 2, *SHAPE, TOKENS, COLUMNS)
    densities = given.log_density(z_o - loc), gaussian.kl_divergence(z_o, given, law.prior)
    for s in range(number):
        for mean, one in zip(law.means(z_o), law.means(z_o[s, 1]), strict=True):
            assert_close(mean[s, 1], one)
        assert_close(densities[0][s, 1], given.log_density(z_o[s, 1] - loc))
        assert_close(densities[1][s, 1], gaussian.kl_divergence(z_o[s, 1], given, law.prior))


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients(options):
    tensors = [randn(1, 1, 3, 2, seed=seed) for seed in range(4)] + [SCALES[:, :1], NOISE[:1]]
    tensors += [randn(1, 1, 3, 2, seed=4), randn(1, 1, 3, seed=5).abs() + 0.3]
    names = ["query", "key", "latent", "value", "scales", "noise"]
    mask = torch.tensor([[True, False, True]])

    def function(*tensors):
        *points, loc, scale = tensors
        outputs = []
        for real, count in ((None, 3), (mask.unsqueeze(-2), mask.sum(-1, keepdim=True, dtype=torch.float64))):
            keep = torch.ones(3, 1).bool() if real is None else real.unsqueeze(-1)
            fields = dict(zip(names, points, strict=True))
            fields["value"] = fields["value"].where(keep, 0.0)
            law = CGP(**fields, real=real, count=count, **options)
            guide = law.learned(loc.where(keep, 0.0), scale.where(keep.squeeze(-1), 1.0))
            outputs += [law.mean, law.log_marginal(), law.regulariser(guide)]
            loc, given = law.posterior()
            torch.manual_seed(0)
            drawn = given.draw(law.value.shape)
            outputs += [loc, drawn, given.log_density(drawn), gaussian.kl_divergence(loc, given, law.prior)]
            outputs += [law.regulariser(guide._replace(covariance=law.prior)), law.predictive.tril]
        return tuple(outputs)

    assert torch.autograd.gradcheck(function, [tensor.detach().clone().requires_grad_() for tensor in tensors])


def random_dense(seed, n=4):
    root = randn(*SHAPE, n, n, seed=seed)
    matrix = root @ root.mT + 0.3 * identity(n)
    return matrix, Dense(torch.linalg.cholesky(matrix), n)


def test_dense_covariance_against_torch_distributions():
    (p_matrix, p), (q_matrix, q) = random_dense(0), random_dense(1)
    x, loc = randn(*SHAPE, 4, 2, seed=2), randn(*SHAPE, 4, 2, seed=3)
    zero = torch.zeros(4, dtype=torch.float64)
    p_law, q_law = MultivariateNormal(zero, p_matrix[..., None, :, :]), q_matrix[..., None, :, :]
    assert p.shape == (*SHAPE, 4)
    assert_close(p.variance(), p_matrix.diagonal(dim1=-2, dim2=-1))
    assert_close(p.log_det(), torch.logdet(p_matrix))
    assert_close(p.quadratic(x), (x * torch.linalg.solve(p_matrix, x)).sum((-2, -1)))
    assert_close(p.log_density(x), p_law.log_prob(x.mT).sum(-1))
    ratio = torch.linalg.solve(p_matrix, q_matrix).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert_close(q.relative_trace(p), ratio - 4)
    exact = kl_divergence(MultivariateNormal(loc.mT, q_law.expand(*SHAPE, 2, 4, 4)), p_law).sum(-1)
    assert_close(gaussian.kl_divergence(loc, q, p), exact)
    assert_close(gaussian.kl_divergence(loc, p, p), gaussian.kl_divergence(loc, Dense(p.tril, 4), p))


def test_draws_of_a_dense_covariance():
    matrix, dense = random_dense(0)
    torch.manual_seed(0)
    number = 40_000
    x = dense.draw(torch.Size((number, *SHAPE, 4, 2))).flatten(-2)  # tokens × columns
    expected = torch.stack(
        [torch.stack([torch.kron(m, torch.eye(2, dtype=torch.float64)) for m in row]) for row in matrix]
    )
    assert_moments(x, torch.zeros(8, dtype=torch.float64), expected)
    across = (x[:, 0, 0, :, None] * x[:, 0, 1, None, :]).mean(0)  # heads are independent
    assert across.abs().max() < 5 * expected.max() / number**0.5


def assert_moments(x, loc, expected):
    """Sample mean and covariance ``(draws, ..., n)`` lie within 5 standard errors."""
    number, centred = len(x), x - loc
    variance = expected.diagonal(dim1=-2, dim2=-1)
    assert (centred.mean(0).abs() < 5 * (variance / number).sqrt()).all()
    sample = torch.einsum("s...i,s...j->...ij", centred, centred) / number
    error = ((variance.unsqueeze(-1) * variance.unsqueeze(-2) + expected**2) / number).sqrt()
    assert ((sample - expected).abs() < 5 * error).all()


@pytest.mark.parametrize(
    ("name", "noise", "options"),
    [
        ("query_covariance", 1e-4, {"noisy_output": False}),
        ("predictive", 1e-4, {"noisy_output": False}),
        ("key_covariance", 1e-8, {}),
    ],
)
def test_a_difference_that_is_all_rounding_is_moved_by_a_share_of_the_kernel(name, noise, options):
    """In float32 the points lie so close together that nothing of the kernel is left unexplained."""
    torch.manual_seed(0)
    points = [1e-3 * torch.randn(2, 2, 16, 8) for _ in range(3)]
    law = CGP(*points, torch.randn(2, 2, 16, 8), torch.ones(2, 2), torch.full((2,), noise), None, 16, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        covariance = getattr(law, name)
    assert covariance.tril.isfinite().all()
    assert covariance.variance().max() < 2e-2
