"""Programs as Pyro users write them on layers of this library; the posterior of one of them is
known."""

from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import nn

from probattn import KEPSVGPAttention, draws, name_layers
from probattn.models import Classifier

N, SIGMA = 12, 0.4


class Regression(PyroModule):
    """y ~ N(w · attention(x), σ²) with fixed weights: linear in u, so that everything has a closed
    form."""

    num_data = N

    def __init__(self, **options):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 1, **{"rank": 2, "eta": 0.0, "scale": 1.5} | options)
        name_layers(self)
        self.requires_grad_(False).eval()

    def mean(self, x):
        return 3 * self.attention(x).mean((-2, -1))

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(self.mean(x), SIGMA), obs=y)


class Program(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def classifier(*layers, num_data):
    return Classifier(nn.Sequential(*layers, Pool(), nn.Linear(8, 3)), num_data=num_data)


def conjugate(model, x, y):
    """Exact posterior of vec(u) and evidence; the mean of y is features · vec(u) + intercept."""
    scale = model.attention.sites()["u"].stddev.flatten().detach()

    def mean(u):
        return poutine.condition(model.mean, data={"attention.u": u.view(1, 2, 2)})(x)

    features = torch.autograd.functional.jacobian(mean, torch.zeros(4))
    intercept = mean(torch.zeros(4)).detach()
    covariance = SIGMA**2 * torch.eye(len(y)) + features @ scale.square().diag() @ features.T
    precision = scale.pow(-2).diag() + features.T @ features / SIGMA**2
    location = torch.linalg.solve(precision, features.T @ (y - intercept) / SIGMA**2)
    return SimpleNamespace(
        evidence=dist.MultivariateNormal(intercept, covariance).log_prob(y),
        location=location,
        precision=precision,
        features=features,
        intercept=intercept,
        mean=intercept + features @ location,
        variance=(features @ torch.linalg.inv(precision) @ features.T).diagonal(),
    )


def bound(model, guide, x, y):
    """−ELBO in nats by many draws."""
    with draws(2000):
        return Trace_ELBO().loss(model, guide, x, y)
