"""Models whose predictive distribution is known, for tests of predictions."""

import pyro.poutine as poutine
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import predict
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

F64 = torch.float64


RANK_2 = KEPSVGPAttention.partial(rank=2)


class Network(nn.Module):
    def __init__(self, outputs=3, *, attention=RANK_2, pool=True) -> None:
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


def predicted_and_outputs(model, guide, data, *, num_samples):
    """The prediction, and the network's outputs for each draw and each example by itself
    ``(S, n, ...)``."""
    prediction = predict(model, guide, data, num_samples=num_samples, keep_draws=True)
    batches = [(data,)] if isinstance(data, torch.Tensor) else data
    model.eval()
    outputs = []
    for s in range(num_samples):
        network = poutine.condition(
            model.network, data={name: u[s] for name, u in prediction.latents.items()}
        )
        for x, *others in batches:
            mask = others[1] if len(others) == 2 else None
            outputs += [
                network(x[i : i + 1], None if mask is None else mask[i : i + 1])[0]
                for i in range(len(x))
            ]
    return prediction, torch.stack(outputs).unflatten(0, (num_samples, -1)).detach()


def assert_classes_of(prediction, logits):
    """Every field of a prediction of classes is that of these outputs ``(S, ..., classes)`` of the
    network."""
    probs = logits.softmax(-1)
    mean, energy = probs.mean(0), -logits.exp().sum(-1).log().mean(0)
    entropy, expected = -(mean * mean.log()).sum(-1), -(probs * probs.log()).sum(-1).mean(0)
    fields = {"probs": mean, "entropy": entropy, "expected_entropy": expected, "energy": energy}
    for name, value in (fields | {"mutual_information": entropy - expected}).items():
        torch.testing.assert_close(
            getattr(prediction, name), value, rtol=1e-6, atol=1e-12, msg=name
        )
