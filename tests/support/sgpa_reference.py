"""SGPA layers and their reference in loops."""

import torch
from sampling import randn
from torch.distributions import MultivariateNormal, kl_divergence

from probattn import SGPAttention

F64 = torch.float64
MASK = torch.tensor([[True] * 5, [True, False, True, True, False]])


def make(dim=6, heads=2, *, seed=0, **options):
    """A layer whose kernel is away from its start."""
    torch.manual_seed(seed)
    layer = SGPAttention(dim, heads, **{"inducing": 3, **options}).double()
    with torch.no_grad():
        for name, parameter in layer.kernel.named_parameters():
            parameter += 0.3 * randn(*parameter.shape, seed=len(name))
    return layer


def kernel(layer, h, a, b):
    """The kernel of one head between all pairs of rows."""
    state = {name: value.detach() for name, value in layer.kernel.named_parameters()}
    lengthscale = state["log_lengthscale"][h].exp() if state else torch.ones(a.shape[-1], dtype=F64)
    variance = state["log_variance"][h].exp() if state else 1.0
    pairs = a.unsqueeze(-2), b.unsqueeze(-3)
    if type(layer.kernel).__name__ == "Exponential":
        return variance * (pairs[0] * pairs[1] / lengthscale**2).sum(-1).exp()
    return variance * (-0.5 * ((pairs[0] - pairs[1]) / lengthscale).square().sum(-1)).exp()


class Head:
    """Everything MATH says of one head of one example, at its real tokens, with inverses."""

    def __init__(self, layer, x, h):
        state = {name: value.detach() for name, value in layer.named_parameters()}
        width, weight = layer.head_dim, state["query_value.weight"]
        bias = state.get("query_value.bias", torch.zeros(2 * layer.dim, dtype=F64))
        part, other = slice(h * width, (h + 1) * width), slice(layer.dim + h * width, layer.dim + (h + 1) * width)
        self.q, self.v = x @ weight[part].T + bias[part], x @ weight[other].T + bias[other]
        self.k = kernel(layer, h, self.q, self.q)
        if layer.inducing is None:
            spread = x @ state["form.spread.weight"][h] + state["form.spread.bias"][h]
            root = torch.linalg.cholesky(self.k)
            self.c, self.posterior = self.k, root @ torch.diag((1e-3 + torch.log1p(spread.exp())) ** 2) @ root.T
            zero = torch.zeros(len(x), dtype=F64)
            q, p = MultivariateNormal((self.k @ self.v).T, self.posterior), MultivariateNormal(zero, self.k)
            self.kl = kl_divergence(q, p).sum()
        else:
            beta = state["form.inducing"][h] @ weight[part].T + bias[part]
            k_qb, self.k_bb = kernel(layer, h, self.q, beta), kernel(layer, h, beta, beta)
            self.tril = torch.linalg.cholesky(self.k_bb)
            self.project = k_qb @ torch.linalg.inv(self.k_bb)
            self.c = self.posterior = self.k - self.project @ k_qb.T
            self.kl = 0.5 * torch.trace(self.v.T @ self.c @ self.v)
        self.mean = self.c @ self.v

    def f(self, g, u):
        """f given g ``(n, width)`` and whitened u ``(width, M)``, or None."""
        return g if u is None else g + self.project @ self.tril @ u.T


def heads_of(layer, x, mask=None):
    """``[example][head]``."""
    masks = [slice(None)] * len(x) if mask is None else mask
    return [[Head(layer, row[real], h) for h in range(layer.heads)] for row, real in zip(x, masks, strict=True)]


def law(trace):
    """Prior and posterior of g."""
    return trace.nodes["g"]["fn"], trace.nodes["g"]["infer"]["posterior"]
