"""Both correlated-GP layers, each with a reference in loops; a test that takes `kind` runs on both."""

import copy

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import CGPAttention, SparseCGPAttention, guides, local_sites

DIM, HEADS = 6, 2


def kappa(a, b):
    """κ_o entry by entry."""
    return torch.stack([torch.stack([torch.exp(-0.5 * ((x - y) ** 2).sum()) for y in b]) for x in a])


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


class Kind:
    """A layer and its reference; subclasses define the joint of (z_o, z_q, z_k) in one column of a head."""

    def make(self, dim=DIM, heads=HEADS, *, seed=0, moved=0.2, collapsed=True, **options):
        """A layer, z_o integrated out by default, whose parameters are all away from their initial values."""
        torch.manual_seed(seed)
        defaults = {"noise": 0.6, "output": "mean", "alpha": 1.0, "bias": True, "collapsed": collapsed, **self.defaults}
        layer = self.layer(dim, heads, **defaults | options).double()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter += moved * torch.randn_like(parameter)
        return layer

    def loops(self, layer, x, mask=None):
        """For each example: its real tokens and its heads."""
        with torch.no_grad():
            for b in range(len(x)):
                rows = torch.arange(x.shape[1]) if mask is None else mask[b].nonzero().flatten()
                yield b, rows, [Head(self, layer, x[b, rows], h) for h in range(layer.heads)]

    def run(self, layer, x, mask=None):
        """The layer's sites by their own names, with log densities; ``_RETURN`` is its output."""
        trace = poutine.trace(layer).get_trace(x, mask)
        trace.compute_log_prob()
        return {name.rpartition(".")[2]: node for name, node in trace.nodes.items()}

    def r_of(self, layer, x, mask=None):
        return self.run(layer, x, mask)["regulariser"]["log_prob"]

    def loss_of(self, elbo, layer, *inputs):
        model = Program(layer)
        return elbo().differentiable_loss(model, guides.for_model(model), *inputs)

    def copied(self, layer, **attributes):
        layer = copy.deepcopy(layer)
        for name, value in attributes.items():
            setattr(layer, name, value)
        return layer

    def program(self, layer):
        return Program(layer)

    def network(self, layer):
        return Network(layer)

    def symmetric(self, matrix):
        return symmetric(matrix)

    def identity(self, n):
        return torch.eye(n, dtype=torch.float64)


class Dense(Kind):
    layer, defaults = CGPAttention, {}

    def joint(self, layer, h, query, key, value, latent):
        """The joint covariance, and the observed z_k."""
        (sq, sk), s2, eye = layer.log_scales[:, h].exp(), layer.log_noise[h].exp() ** 2, self.identity(len(query))
        k_qo, k_ko = sq * kappa(query, latent), sk * kappa(key, latent)
        p = kappa(latent, latent) + (s2 * eye if layer.noisy_canonical else 0)
        k_q, k_k = sq**2 * kappa(query, query), sk**2 * kappa(key, key) + s2 * eye
        k_q = k_q + (s2 * eye if layer.noisy_output else 0)
        cross = k_qo @ torch.linalg.solve(p, k_ko.T)
        rows = ((p, k_qo.T, k_ko.T), (k_qo, k_q, cross), (k_ko, cross.T, k_k))
        return torch.cat([torch.cat(row, 1) for row in rows]), k_k @ value

    def covariance(self, given):
        return given.tril @ given.tril.mT


class Sparse(Kind):
    layer, defaults = SparseCGPAttention, {"inducing": 3, "inducing_keys": 4}

    def joint(self, layer, h, query, key, value, latent):
        """The joint covariance, each variable a matrix times standard normals, and the observed z_k."""
        (sq, sk), sigma = layer.log_scales[:, h].exp(), layer.log_noise[h].exp()
        if layer.tokens is None:
            m, l = (points[h] for points in layer.inducing)
        else:
            m, l = (mixture @ latent for mixture in layer.inducing)
        n, solve = len(query), torch.linalg.solve
        k_mm, k_om, k_ll = kappa(m, m), kappa(latent, m), kappa(l, l)
        b_m = k_mm + k_om.T @ k_om / sigma**2
        sizes = [len(l), n, n, len(m), n]
        normals = self.identity(sum(sizes)).split(sizes)
        z_l = torch.linalg.cholesky(k_ll) @ normals[0]
        z_k = sk * kappa(key, l) @ solve(k_ll, z_l) + sigma * normals[1]
        z_o = kappa(latent, l) @ solve(k_ll, z_l) + sigma * normals[2]
        z_m = k_mm @ solve(b_m, k_om.T @ z_o) / sigma**2  # (55)
        z_m = z_m + torch.linalg.cholesky(symmetric(k_mm @ solve(b_m, k_mm))) @ normals[3]
        z_q = sq * kappa(query, m) @ solve(k_mm, z_m) + sigma * normals[4]
        whole = torch.cat([z_o, z_q, z_k])
        return whole @ whole.T, value  # (34)

    def covariance(self, given):
        return given.factor @ given.factor.mT + torch.diag_embed(given.noise.expand(given.shape))


class Head:
    """One head of one example without padding, x ``(n, dim)``: its joint law, conditioned by `solve` alone."""

    def __init__(self, kind, layer, x, h):
        part = slice(h * layer.head_dim, (h + 1) * layer.head_dim)
        projected = F.linear(x, layer.query_key_value.weight, layer.query_key_value.bias).chunk(3, dim=-1)
        query, key, value = (t[:, part] for t in projected)
        latent = F.linear(x, layer.latent.weight, layer.latent.bias)[:, part]
        n = len(x)
        self.o, self.q, self.k = slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n)
        self.joint, self.z_k = kind.joint(layer, h, query, key, value, latent)
        self.nu, self.predictive = self.given([self.q], [self.k], self.z_k)
        self.seen = torch.cat([self.nu, self.z_k])
        self.prior = torch.zeros_like(value), symmetric(self.joint[self.o, self.o])
        if layer.canonical_guide == "learned":  # the learned guide is what the program says at its site, R is not
            q = kind.run(kind.copied(layer, collapsed=False), x.unsqueeze(0))["z_o"]["infer"]["posterior"]
            self.learned = q.mean[0, h], symmetric(kind.covariance(q.covariance)[0, h])

    def pick(self, a, b):
        return torch.cat([torch.cat([self.joint[i, j] for j in b], dim=1) for i in a])

    def given(self, of, on, value):
        """Mean and covariance of some blocks given the values of others."""
        gain = torch.linalg.solve(self.pick(on, on), self.pick(on, of)).T
        return gain @ value, self.pick(of, of) - gain @ self.pick(on, of)

    @property
    def given_keys(self):
        """p(z_o | z_k)."""
        mean, covariance = self.given([self.o], [self.k], self.z_k)
        return mean, symmetric(covariance)

    @property
    def posterior(self):
        """p(z_o | z_q = ν, z_k)."""
        mean, covariance = self.given([self.o], [self.q, self.k], self.seen)
        return mean, symmetric(covariance)

    def log_marginal(self):
        zero = torch.zeros(len(self.seen), dtype=torch.float64)
        return MultivariateNormal(zero, self.pick([self.q, self.k], [self.q, self.k])).log_prob(self.seen.T).sum()

    def drawn(self, guide):
        """The law that z_o is sampled from under that guide."""
        return self.given_keys if guide == "posterior" else getattr(self, guide)

    def evidence(self):
        """log p(z_k)."""
        zero = torch.zeros(len(self.z_k), dtype=torch.float64)
        return MultivariateNormal(zero, symmetric(self.joint[self.k, self.k])).log_prob(self.z_k.T).sum()

    def bound(self, guide, *, collapsed=True):
        """R with that guide of z_o: log p(ν, z_k) − KL(q(z_o) ‖ p(z_o | ν, z_k))."""
        q = getattr(self, guide) if collapsed else self.drawn(guide)
        normals = [
            MultivariateNormal(mean.T, covariance.expand(mean.shape[1], -1, -1))
            for mean, covariance in (q, self.posterior)
        ]
        return self.log_marginal() - kl_divergence(*normals).sum()


class Program(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, mask=None):
        with local_sites(batch=len(x), num_data=len(x)):
            return self.layer(x, mask)


class Network(torch.nn.Module):
    """The layer and a head at the first token."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, torch.nn.Linear(layer.dim, 3).double()

    def forward(self, x, mask=None):
        return self.head(self.layer(x, mask)[..., 0, :])


@pytest.fixture(params=[Dense, Sparse])
def kind(request):
    """The dense and the sparse layer in turn."""
    return request.param()


@pytest.fixture
def dense():
    """The dense layer alone."""
    return Dense()


@pytest.fixture
def sparse():
    """The sparse layer alone."""
    return Sparse()


@pytest.fixture
def layer_is_loops():
    """Output, and law of a drawn output, of a layer against the loops."""

    def check(kind, options, x, mask):
        output, drawn = kind.make(alpha=0, **options)(x, mask), kind.make(alpha=0, **options, output="draw")
        nodes = kind.run(drawn, x, mask)
        law, value = nodes["z_q"]["fn"], nodes["z_q"]["value"]
        for b, rows, heads in kind.loops(drawn, x, mask):
            joined = torch.cat([head.nu for head in heads], dim=-1)
            assert_close(output[b, rows], drawn.out(joined))
            joined = torch.cat([value[b, h, rows] for h in range(drawn.heads)], dim=-1)
            assert_close(nodes["_RETURN"]["value"][b, rows], drawn.out(joined))
            for h, head in enumerate(heads):
                assert_close(law.mean[b, h, rows], head.nu)
                assert_close(kind.covariance(law.covariance)[b, h][rows[:, None], rows], head.predictive)
                assert_close(law.variance[b, h, rows], head.predictive.diagonal().unsqueeze(-1).expand_as(head.nu))

    return check
