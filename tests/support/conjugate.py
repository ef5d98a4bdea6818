"""A model whose posterior is known: y = F + noise with F = (E + R) Λ⁻¹ u, linear in u (MATH
1(e))."""

import pyro.distributions as dist
import torch
from float64 import eye64, randn64, zeros64
from pyro.distributions import constraints
from torch import nn
from torch.distributions import transform_to

from probattn import KEPSVGPAttention, guides
from probattn.models import Supervised

F64, SITE, NOISE = torch.float64, "network.u", 0.8


def conjugate(*, noise=NOISE, num_data=3, heads=1, rank=2):
    """The model, inputs ``(n, 4, heads · rank)``, and labels that it draws."""
    layer = KEPSVGPAttention(heads * rank, heads, rank=rank, eta=0.0)
    layer.out = nn.Identity()
    model = Supervised(
        layer, lambda f, mask=None: dist.Normal(f, noise).to_event(2), num_data=num_data
    ).double()
    with torch.no_grad():
        layer.log_scale.copy_(torch.linspace(0.3, -0.4, heads * rank).view(heads, rank))
        x = randn64(num_data, 4, heads * rank) + 0.5
        return model, x, model(x)


def design(model, x):
    """Regressors ``(n N, 2)`` of u, and Λ² ``(2, 2)``."""
    with torch.no_grad():
        e, r, _, _ = model.network.scores(x)
        scale = model.network.scale[0]
        return ((e + r)[:, 0] / scale).flatten(0, 1), torch.diag(scale**2)


def posterior(model, x, y, *, noise=NOISE):
    """Means of the two columns of u ``(2, 2)``, and the covariance that both have ``(2, 2)``."""
    phi, prior = design(model, x)
    covariance = (prior.inverse() + phi.T @ phi / noise**2).inverse()
    return (covariance @ phi.T @ y.flatten(0, 1) / noise**2).T, covariance


def evidence(model, x, y, *, noise=NOISE):
    phi, prior = design(model, x)
    marginal = phi @ prior @ phi.T + noise**2 * eye64(len(phi))
    return dist.MultivariateNormal(zeros64(len(phi)), marginal).log_prob(y.flatten(0, 1).T).sum()


def gaussian_guide(model, mean, covariance):
    """A full guide at these moments of u."""
    guide, scale = guides.for_model(model), model.network.scale[0].detach()
    with torch.no_grad():
        guide.network.u.loc.copy_(mean / scale)
        tril = (torch.linalg.cholesky(covariance) / scale[:, None]).expand(1, 2, 2, 2)
        guide.network.u.raw_tril.copy_(transform_to(constraints.softplus_lower_cholesky).inv(tril))
    return guide


def gaussian(layer, num_data):
    """y ~ N(layer(x), NOISE²) with the identity as the layer's output map."""
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(*layer.out.weight.shape))
        layer.out.bias.zero_()
    return Supervised(
        layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=num_data
    ).double()


def sgpa_parts(layer, x):
    """A ``(n, N, inducing)`` and C ``(n, N, N)`` of f = A u + g, g ~ N(0, C), of one head; marginal
    C is diagonal."""
    with torch.no_grad():
        a = layer.remainder(x, None).features
        c = layer.attention_matrix(x)[:, 0] - a[:, 0] @ a[:, 0].mT
    return a[:, 0], c if layer.draws == "joint" else torch.diag_embed(c.diagonal(dim1=-2, dim2=-1))
