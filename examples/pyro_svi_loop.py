"""Train an attention layer inside your own Pyro program: pyro.plate, Pyro's SVI, and Predictive."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroParam
from sklearn.datasets import load_diabetes
from torch import nn

from probattn import KEPSVGPAttention, guides, name_layers


class Regression(PyroModule):
    """A number from a row of a table: a token for each column, one attention layer, Gaussian
    noise."""

    def __init__(self, columns, dim=16):
        super().__init__()
        self.embed = nn.Parameter(0.5 * torch.randn(columns, dim))
        self.names = nn.Parameter(0.5 * torch.randn(columns, dim))
        self.attention = KEPSVGPAttention(dim, 2, rank=4, merge="add")
        self.head = nn.Linear(dim, 1)
        self.noise = PyroParam(torch.tensor(1.0), constraint=dist.constraints.positive)
        name_layers(self)  # by their paths: the latent site is attention.u

    def forward(self, x, y=None):
        """Sample labels (batch,) of rows (batch, columns); y conditions on them."""
        tokens = x.unsqueeze(-1) * self.embed + self.names
        with pyro.plate("data", len(x)):  # the layer's u is global: it stays outside the plate
            mean = self.head((tokens + self.attention(tokens)).mean(-2)).squeeze(-1)
            return pyro.sample("y", dist.Normal(mean, self.noise), obs=y)


x, y = (torch.tensor(each).float() for each in load_diabetes(return_X_y=True))
x, y = x / x.std(0), (y - y.mean()) / y.std()
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:350], order[350:]

torch.manual_seed(0)
pyro.clear_param_store()
model = Regression(x.shape[1])
guide = guides.for_model(model)  # or an AutoGuide, or a function with pyro.param
svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.01}), TraceMeanField_ELBO())
# Few steps: only u has a posterior, and with 100 the other weights overfit, and intervals become
# too narrow.
losses = [svi.step(x[train], y[train]) / len(train) for _ in range(40)]
print(
    f"−ELBO/N: {sum(losses[:10]) / 10:.3f} nats at first, {sum(losses[-10:]) / 10:.3f} at the end"
)

samples = Predictive(model, guide=guide, num_samples=200)(x[test])["y"]  # (samples, rows)
low, high = samples.quantile(torch.tensor([0.05, 0.95]), dim=0)
rmse = (samples.mean(0) - y[test]).square().mean().sqrt().item()
coverage = ((low <= y[test]) & (y[test] <= high)).float().mean().item()
print(
    f"test RMSE {rmse:.3f} standard deviations of the labels; 90 % intervals hold {coverage:.0%} "
    "of the labels"
)
