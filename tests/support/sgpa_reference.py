"""SGPA layers and their reference for one example without padding."""

import torch
from sampling import randn
from torch.distributions import MultivariateNormal, kl_divergence

from probattn import SGPAttention
from probattn.site_info import info_of

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


def kernel(layer, a, b):
    """The kernel of each head between all pairs of rows."""
    state = {name: value.detach() for name, value in layer.kernel.named_parameters()}
    lengthscale = state["log_lengthscale"].exp()[:, None, None] if state else 1.0
    variance = state["log_variance"].exp()[:, None, None] if state else 1.0
    first, second = a.unsqueeze(-2), b.unsqueeze(-3)
    if type(layer.kernel).__name__ == "Exponential":
        return variance * (first * second / lengthscale**2).sum(-1).exp()
    return variance * (-0.5 * ((first - second) / lengthscale).square().sum(-1)).exp()


class Heads:
    """Everything MATH says of the heads of one example, at its real tokens ``(n, dim)``, with
    inverses."""

    def __init__(self, layer, x):
        state = {name: value.detach() for name, value in layer.named_parameters()}
        for_q, for_v = (
            state["query_value.weight"].view(2, layer.heads, layer.head_dim, layer.dim).mT
        )
        bias = state.get("query_value.bias", torch.zeros(2 * layer.dim, dtype=F64))
        bias_q, bias_v = bias.view(2, layer.heads, 1, layer.head_dim)
        self.q, self.v = x @ for_q + bias_q, x @ for_v + bias_v
        self.k = kernel(layer, self.q, self.q)
        if layer.inducing is None:
            spread = (x @ state["form.spread.weight"].T + state["form.spread.bias"]).T
            root, scale = torch.linalg.cholesky(self.k), 1e-3 + torch.log1p(spread.exp())
            self.c, self.posterior = self.k, root @ scale.square().diag_embed() @ root.mT
            q = MultivariateNormal((self.k @ self.v).mT, self.posterior.unsqueeze(1))
            self.kl = kl_divergence(
                q, MultivariateNormal(torch.zeros_like(q.mean), self.k.unsqueeze(1))
            ).sum()
        else:
            beta = state["form.inducing"] @ for_q + bias_q
            k_qb, k_bb = kernel(layer, self.q, beta), kernel(layer, beta, beta)
            self.tril = torch.linalg.cholesky(k_bb)
            self.project = k_qb @ torch.linalg.inv(k_bb)
            self.c = self.posterior = self.k - self.project @ k_qb.mT
            self.kl = 0.5 * (self.v * (self.c @ self.v)).sum()
        self.mean = self.c @ self.v

    def f(self, g, u=None):
        """f given g ``(H, n, width)`` and whitened u ``(H, width, M)``, or None."""
        return g if u is None else g + self.project @ self.tril @ u.mT


def examples_of(layer, x, mask=None):
    masks = [slice(None)] * len(x) if mask is None else mask
    return [Heads(layer, row[real]) for row, real in zip(x, masks, strict=True)]


def law(trace):
    """Prior and posterior of g."""
    return trace.nodes["g"]["fn"], info_of(trace.nodes["g"]).posterior
