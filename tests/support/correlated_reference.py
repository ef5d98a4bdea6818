"""The correlated-GP layers, dense, sparse and with random features, each with a reference for one
example without padding."""

import math

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, kl_divergence

from probattn import CGPAttention, RFFCGPAttention, SparseCGPAttention, guides, local_sites

DIM, HEADS, TOKENS = 6, 2, 5
GUIDES = ("posterior", "prior", "learned")
MASK = torch.tensor(
    [[True] * 5, [True, False, True, True, False], [False, True, False, False, False]]
)


def kappa(a, b):
    """κ_o of all pairs of rows."""
    return torch.exp(-0.5 * (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1))


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


def identity(n):
    return torch.eye(n, dtype=torch.float64)


class Kind:
    """A layer and its reference; subclasses define the joint of (z_o, z_q, z_k) in one column of
    each head."""

    def make(self, dim=DIM, heads=HEADS, *, moved=0.2, collapsed=True, **options):
        """A layer, z_o integrated out by default, whose parameters are all away from their initial
        values."""
        torch.manual_seed(0)
        defaults = {
            "noise": 0.6,
            "output": "mean",
            "alpha": 1.0,
            "bias": True,
            "collapsed": collapsed,
            **self.defaults,
        }
        layer = self.layer(dim, heads, **defaults | options).double()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter += moved * torch.randn_like(parameter)
        return layer

    def loops(self, layer, x, mask=None):
        """For each example: its number, its real tokens and its heads."""
        with torch.no_grad():
            for b in range(len(x)):
                rows = torch.arange(x.shape[1]) if mask is None else mask[b].nonzero().flatten()
                yield b, rows, Heads(self, layer, x[b, rows])


class Dense(Kind):
    layer, defaults = CGPAttention, {}

    def joint(self, layer, query, key, value, latent):
        """The joint covariance, and the observed z_k."""
        (sq, sk) = layer.log_scales.exp()[..., None, None]
        s2 = layer.log_noise.exp()[:, None, None] ** 2
        k_qo = sq * kappa(query, latent)
        k_ko = sk * kappa(key, latent)
        noise = s2 * identity(query.shape[-2])
        p = kappa(latent, latent) + (noise if layer.noisy_canonical else 0)
        k_q, k_k = sq**2 * kappa(query, query), sk**2 * kappa(key, key) + noise
        k_q = k_q + (noise if layer.noisy_output else 0)
        cross = k_qo @ torch.linalg.solve(p, k_ko.mT)
        rows = ((p, k_qo.mT, k_ko.mT), (k_qo, k_q, cross), (k_ko, cross.mT, k_k))
        return torch.cat([torch.cat(row, -1) for row in rows], -2), k_k @ value

    def learned_mean(self, prior, loc):
        return prior @ loc

    def covariance(self, law):
        return law.tril @ law.tril.mT


class Sparse(Kind):
    layer, defaults = SparseCGPAttention, {"inducing": 3, "inducing_keys": 4}

    def joint(self, layer, query, key, value, latent):
        """The joint covariance, each variable a matrix times standard normals, and the observed
        z_k."""
        (sq, sk) = layer.log_scales.exp()[..., None, None]
        sigma = layer.log_noise.exp()[:, None, None]
        m, l = (
            layer.inducing
            if layer.tokens is None
            else (mixture @ latent for mixture in layer.inducing)
        )
        n, solve = query.shape[-2], torch.linalg.solve
        k_mm, k_om, k_ll = kappa(m, m), kappa(latent, m), kappa(l, l)
        b_m = k_mm + k_om.mT @ k_om / sigma**2
        sizes = [l.shape[-2], n, n, m.shape[-2], n]
        normals = identity(sum(sizes)).split(sizes)
        z_l = torch.linalg.cholesky(k_ll) @ normals[0]
        z_k = sk * kappa(key, l) @ solve(k_ll, z_l) + sigma * normals[1]
        z_o = kappa(latent, l) @ solve(k_ll, z_l) + sigma * normals[2]
        z_m = k_mm @ solve(b_m, k_om.mT @ z_o) / sigma**2  # (55)
        z_m = z_m + torch.linalg.cholesky(symmetric(k_mm @ solve(b_m, k_mm))) @ normals[3]
        z_q = sq * kappa(query, m) @ solve(k_mm, z_m) + sigma * normals[4]
        whole = torch.cat([z_o, z_q, z_k], -2)
        return whole @ whole.mT, value  # (34)

    def learned_mean(self, prior, loc):
        return loc

    def covariance(self, law):
        return law.factor @ law.factor.mT + torch.diag_embed(law.noise.expand(law.shape))


class Fourier(Kind):
    layer, defaults = RFFCGPAttention, {"features": 6, "variance": 1.3}

    def joint(self, layer, query, key, value, latent):
        """The joint covariance of dense CGP with the kernel φ(x)ᵀφ(y), and the observed z_k, V."""
        (sq, sk), s2 = (
            layer.log_scales.exp()[..., None, None],
            layer.log_noise.exp()[:, None, None] ** 2,
        )
        q, k, o = sq * phi(layer, query), sk * phi(layer, key), phi(layer, latent)
        noise = s2 * identity(query.shape[-2])
        p = o @ o.mT + noise
        cross = q @ o.mT @ torch.linalg.solve(p, o @ k.mT)
        rows = (p, o @ q.mT, o @ k.mT), (q @ o.mT, q @ q.mT + noise, cross)
        rows += ((k @ o.mT, cross.mT, k @ k.mT + noise),)
        return torch.cat([torch.cat(row, -1) for row in rows], -2), value

    learned_mean, covariance = Sparse.learned_mean, Sparse.covariance


def phi(layer, points, frequencies=None):
    """Random Fourier features of points ``(H, n, d)``, frequency by frequency."""
    fourier = layer.fourier
    if frequencies is None:
        frequencies = fourier.frequencies / fourier.log_lengthscale.exp().unsqueeze(-2)
    scale = (fourier.log_variance.exp() / frequencies.shape[-2]).sqrt()
    angles = [(points * w.unsqueeze(-2)).sum(-1) for w in frequencies.unbind(-2)]
    columns = [angle.cos() for angle in angles] + [angle.sin() for angle in angles]
    return scale[:, None, None] * torch.stack(columns, -1)


ALL = Dense(), Sparse(), Fourier()
KINDS = pytest.mark.parametrize("kind", ALL, ids=["dense", "sparse", "fourier"])


class Heads:
    """The heads of one example without padding, x ``(n, dim)``: their joint laws, conditioned by
    `solve` alone."""

    def __init__(self, kind, layer, x):
        def split(t):
            return t.unflatten(-1, (-1, layer.heads, layer.head_dim)).permute(1, 2, 0, 3)

        query, key, value = split(
            F.linear(x, layer.query_key_value.weight, layer.query_key_value.bias)
        )
        (latent,), n = split(F.linear(x, layer.latent.weight, layer.latent.bias)), len(x)
        self.o, self.q, self.k = slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n)
        self.joint, self.z_k = kind.joint(layer, query, key, value, latent)
        self.nu, self.predictive = self.given([self.q], [self.k], self.z_k)
        self.seen = torch.cat([self.nu, self.z_k], -2)
        self.prior = torch.zeros_like(value), symmetric(self.joint[:, self.o, self.o])
        if layer.canonical_guide == "learned":
            loc, raw = layer.canonical.linear(x).split([layer.dim, layer.heads], -1)
            scale = (
                1e-3 + F.softplus(raw.T + math.log(math.expm1(0.999)))
            ).diag_embed()  # I where raw is 0
            loc = kind.learned_mean(self.prior[1], split(loc)[0])
            self.learned = loc, symmetric(scale @ self.prior[1] @ scale)

    def pick(self, a, b):
        return torch.cat([torch.cat([self.joint[:, i, j] for j in b], -1) for i in a], -2)

    def given(self, of, on, value):
        """Mean and covariance of some blocks given the values of others."""
        gain = torch.linalg.solve(self.pick(on, on), self.pick(on, of)).mT
        return gain @ value, symmetric(self.pick(of, of) - gain @ self.pick(on, of))

    @property
    def posterior(self):
        """p(z_o | z_q = ν, z_k)."""
        return self.given([self.o], [self.q, self.k], self.seen)

    def drawn(self, guide):
        """The law that z_o is sampled from under that guide: for the posterior p(z_o | z_k)."""
        return (
            self.given([self.o], [self.k], self.z_k)
            if guide == "posterior"
            else getattr(self, guide)
        )

    def log_marginal(self):
        """log p(z_q = ν, z_k)."""
        return log_density(self.seen, self.pick([self.q, self.k], [self.q, self.k]))

    def evidence(self):
        """log p(z_k)."""
        return log_density(self.z_k, symmetric(self.joint[:, self.k, self.k]))

    def bound(self, guide, *, collapsed=True):
        """R with that guide of z_o: log p(ν, z_k) − KL(q(z_o) ‖ p(z_o | ν, z_k))."""
        q = getattr(self, guide) if collapsed else self.drawn(guide)
        q, p = (normal(*law) for law in (q, self.posterior))
        return self.log_marginal() - kl_divergence(q, p).sum()


def normal(mean, covariance):
    """One distribution a head and column of the mean ``(..., n, columns)``."""
    return MultivariateNormal(mean.mT, covariance.unsqueeze(-3))


def log_density(value, covariance):
    """log N(value; 0, covariance), summed over heads and columns."""
    return normal(torch.zeros_like(value), covariance).log_prob(value.mT).sum()


def run(layer, x, mask=None):
    """The layer's sites by their own names, with log densities; ``_RETURN`` is its output."""
    with local_sites(batch=len(x), num_data=len(x)):
        trace = poutine.trace(layer).get_trace(x, mask)
    trace.compute_log_prob()
    return {name.rpartition(".")[2]: node for name, node in trace.nodes.items()}


def r_of(layer, x, mask=None):
    return run(layer, x, mask)["regulariser"]["log_prob"]


class Program(torch.nn.Module):
    """The layer, with its examples as the whole data set."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, mask=None):
        with local_sites(batch=len(x), num_data=len(x)):
            return self.layer(x, mask)


def loss_of(elbo, layer, *inputs):
    model = Program(layer)
    return elbo().differentiable_loss(model, guides.for_model(model), *inputs)
