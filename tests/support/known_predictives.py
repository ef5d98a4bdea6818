"""Models whose predictive distribution is known, for tests of predictions."""

import pyro.poutine as poutine
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

F64 = torch.float64


class Network(nn.Module):
    def __init__(self, outputs=3, *, attention=KEPSVGPAttention.partial(rank=2), pool=True) -> None:  # noqa: B008
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layers = nn.ModuleList([attention(4, 2), attention(4, 2)])
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, outputs)
        self.pool = pool

    def forward(self, x, mask=None):
        x = self.embed(x)
        for layer in self.layers:
            x = x + self.dropout(layer(x, mask))
        return self.head(x.mean(-2) if self.pool else x)


def build(likelihood=None, family="full", **options):
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=9).double()
    return model, guides.for_model(model, family)


def outputs_by_hand(model, trace, x, num_samples, mask=None):
    """Outputs of each draw and each example alone ``(S, n, ...)``."""
    model.eval()
    rows = []
    for s in range(num_samples):
        fixed = {name: node["value"][s, 0] for name, node in trace.nodes.items() if name.endswith(".u")}
        assert len(fixed) == 2
        network = poutine.condition(model.network, data=fixed)
        each = [network(x[i : i + 1], None if mask is None else mask[i : i + 1])[0] for i in range(len(x))]
        rows.append(torch.stack(each))
    return torch.stack(rows).detach()
