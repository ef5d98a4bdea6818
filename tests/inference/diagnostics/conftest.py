"""Models with one attention layer and data for predictive checks."""

import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import constraints
from torch import nn
from torch.distributions import transform_to

from probattn import KEPSVGPAttention, guides
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical

F64 = torch.float64


class Network(nn.Module):
    def __init__(self, *, outputs=3, gain=1.0, prior=None, pool=True):
        super().__init__()
        self.layer = KEPSVGPAttention(4, 2, rank=2, prior=prior)
        self.head = nn.Linear(4, outputs)
        self.gain, self.pool = gain, pool

    def forward(self, x, mask=None):
        x = self.layer(x, mask)
        return self.gain * self.head(x.mean(-2) if self.pool else x)


def _build(likelihood=None, **options):
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=20).double()
    return model, guides.for_model(model)


def _data(n=12, likelihood=Categorical):
    x = torch.randn(n, 5, 4, dtype=F64)
    if likelihood is Gaussian:
        return x, torch.randn(n, 2, dtype=F64)
    if likelihood is Bernoulli:
        return x, torch.randint(2, (n, 3)).double()
    return x, torch.randint(3, (n, 5) if likelihood is TokenCategorical else (n,))


def _batches(*tensors, size=7):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def _conjugate(noise=0.5):
    """A model y = b + A v + noise with v = the two scalars of u that matter, and a guide at its exact posterior.

    Weights of the layer's output are such that the second column of u reaches nothing.
    """
    torch.manual_seed(4)
    layer = KEPSVGPAttention(2, 1, rank=2)
    head = nn.Linear(2, 1)

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = layer, head

        def forward(self, x):
            return 6 * self.head(self.layer(x).mean(-2))

    model = Supervised(Mean(), Gaussian(noise), num_data=8).double()
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        head.weight.copy_(torch.tensor([[1.0, 0.0]]))
        layer.log_scale.copy_(torch.tensor([[0.3, -0.4]]))
    model.eval()
    torch.manual_seed(2)
    x = 2 * torch.randn(8, 4, 2, dtype=F64)
    lam = torch.tensor([0.3, -0.4], dtype=F64).exp()

    def mean(v):
        u = torch.stack((v, torch.zeros_like(v)))[None]
        with torch.no_grad():
            return poutine.condition(model.network, data={"network.layer.u": u})(x)[:, 0]

    b = mean(torch.zeros(2, dtype=F64))
    a = torch.stack([mean(unit) - b for unit in torch.eye(2, dtype=F64)], dim=1)
    y = b + a @ (lam * torch.randn(2, dtype=F64)) + noise * torch.randn(8, dtype=F64)
    cov = torch.linalg.inv(torch.diag(lam**-2) + a.T @ a / noise**2)
    loc = cov @ a.T @ (y - b) / noise**2
    guide = guides.for_model(model)
    q = guide.network.layer.u
    with torch.no_grad():
        q.loc[0, 0] = loc / lam
        tril = torch.linalg.cholesky(cov) / lam.unsqueeze(-1)
        q.raw_tril[0, 0] = transform_to(constraints.softplus_lower_cholesky).inv(tril)
    return model, guide, x, y, b, a, lam, loc, cov


class ConstantNetwork(nn.Module):
    """The same output for every example."""

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, x):
        return self.value.expand(len(x), 1)


@pytest.fixture
def build():
    return _build


@pytest.fixture
def data():
    return _data


@pytest.fixture
def batches():
    return _batches


@pytest.fixture
def conjugate():
    return _conjugate


@pytest.fixture
def constant_network():
    return ConstantNetwork
