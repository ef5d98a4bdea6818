"""A model on a layer of this library whose posterior is conjugate, and guides as a Pyro user writes them."""

from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

import probattn
from probattn import KEPSVGPAttention, draws, name_layers

N, SIGMA = 12, 0.4


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


class Regression(PyroModule):
    """y ~ N(w · attention(x), σ²) with fixed weights: linear in u, so that everything has a closed form."""

    num_data = N

    def __init__(self, **options):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 1, rank=2, eta=0.0, scale=1.5, **options)
        name_layers(self)
        self.requires_grad_(False).eval()

    def mean(self, x):
        return 3 * self.attention(x).mean((-2, -1))

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(self.mean(x), SIGMA), obs=y)


class Plated(Regression):
    """A global site of a user's own in a plate at dimension −1 that is not the plate of the examples."""

    def forward(self, x, y=None):
        with pyro.plate("features", 4):
            weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        mean = (self.attention(x).mean(-2) * weight).sum(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, SIGMA), obs=y)


class ModuleGuide(PyroModule):
    def __init__(self, model):
        super().__init__()
        self.loc = PyroParam(torch.zeros(4))
        self.scale_tril = PyroParam(0.3 * torch.eye(4), constraint=constraints.lower_cholesky)

    def forward(self, x, y=None):
        flat = dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril)
        to_site = dist.transforms.ReshapeTransform((4,), (1, 2, 2))
        return pyro.sample("attention.u", dist.TransformedDistribution(flat, to_site))


class Program(nn.Module):
    """A function as a module, with the modules that it calls."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(-2)


class Head(PyroModule):
    """Mean token and a linear head."""

    def __init__(self):
        super().__init__()
        self.attention = probattn.SoftmaxAttention(4, 2)
        self.requires_grad_(False)
        self.head = PyroModule[nn.Linear](4, 1, bias=False)
        self.head.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 4]).to_event(2))

    def forward(self, x):
        return self.head(self.attention(x).mean(-2))


class Known(nn.Module):
    def forward(self, outputs):
        return dist.Normal(outputs, SIGMA).to_event(1)


def conjugate(model, x, y):
    """Evidence, posterior mean and precision of vec(u), and the map u -> mean as (features, intercept)."""
    size, scale = 4, model.attention.sites()["u"].stddev.flatten().detach()

    def mean(u):
        return poutine.condition(model.mean, data={"attention.u": u.view(1, 2, 2)})(x)

    features = torch.autograd.functional.jacobian(mean, torch.zeros(size))
    intercept = mean(torch.zeros(size)).detach()
    covariance = SIGMA**2 * torch.eye(len(y)) + features @ scale.square().diag() @ features.T
    evidence = torch.distributions.MultivariateNormal(intercept, covariance).log_prob(y)
    precision = scale.pow(-2).diag() + features.T @ features / SIGMA**2
    location = torch.linalg.solve(precision, features.T @ (y - intercept) / SIGMA**2)
    return evidence, location, precision, features, intercept


def gap(precision, blocks):
    """KL from the best Gaussian with independent blocks to the Gaussian of that precision (in nats)."""
    inside = sum(precision[block][:, block].logdet() for block in blocks)
    return 0.5 * (inside - precision.logdet())


def bound(model, guide, x, y, number=2000):
    """−ELBO in nats by many draws."""
    with draws(number):
        return Trace_ELBO().loss(model, guide, x, y)


def function_guide(x, y=None):
    loc = pyro.param("loc", torch.zeros(1, 2, 2))
    scale = pyro.param("scale", torch.full((1, 2, 2), 0.3), constraint=constraints.positive)
    pyro.sample("attention.u", dist.Normal(loc, scale).to_event(3))


@pytest.fixture
def problem():
    model, x = Regression(), torch.randn(N, 3, 4)
    y = model(x).detach()
    return model, x, y


@pytest.fixture
def idioms():
    """Models and data that the tests of this folder share."""
    shared = (Regression, Plated, ModuleGuide, Program, Mean, Head, Known, conjugate, gap, bound, function_guide)
    return SimpleNamespace(**{each.__name__: each for each in shared})
