"""Small model, data and options for tests of fit, and comparisons of runs."""

import json

import pyro.distributions as dist
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import Callback, TrainOptions
from probattn.inference.training.run_log import read_log
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian

STEPS = 3
"""Training steps per epoch."""


class Regularised(SoftmaxAttention):
    """Softmax attention with a regulariser of 3 nats an example, in the CGP layers' form."""

    def forward(self, x, mask=None):
        unit = dist.Unit(x.new_full(x.shape[-3:-2], -3.0))
        self.observe("fit", unit, unit.sample(), regulariser=True)
        return super().forward(x, mask)


class Network(nn.Module):
    def __init__(self, *, outputs=3, dropout=0.0, width=4, attention=None) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.attention = (attention or KEPSVGPAttention.partial(rank=2, eta=0.1))(width, 2)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, outputs)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.dropout(x + self.attention(x)).mean(-2))


class Loader(DataLoader):
    """Loader that calls ``callback`` at ``at = (epoch, batch)``, with the batch 1 or later.

    An epoch counts from its second batch on, since fit may look at one batch beforehand.
    """

    started, at, callback = 0, None, None

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            self.started += number == 1
            if self.at == (self.started, number):
                batch = self.callback(batch) or batch
            yield batch


def data(size=8):
    source = torch.Generator().manual_seed(0)
    y = torch.arange(size) % 3
    x = torch.randn(size, 4, 3, generator=source) * 0.3 + torch.eye(3)[y].unsqueeze(1)
    return TensorDataset(x, y)


def build(
    seed=0, *, guide="full", generator=True, valid=True, likelihood=None, num_data=8, **options
):
    """Return model, guide and loaders (three batches of 3, 3 and 2), all from ``seed``.

    Options are the network's; others, those of a training, are ignored.
    """
    torch.manual_seed(seed)
    options = {
        name: value for name, value in options.items() if name in ("dropout", "width", "attention")
    }
    network = Network(outputs=1 if isinstance(likelihood, Gaussian) else 3, **options)
    model = Supervised(network, likelihood or Categorical(), num_data=num_data)
    its_guide = guides.for_model(model, guide) if isinstance(guide, str) else guide(model)
    source = torch.Generator().manual_seed(100 + seed) if generator else None
    train = Loader(data(), batch_size=3, shuffle=True, generator=source)
    return model, its_guide, train, DataLoader(data(), batch_size=4) if valid else None


def weights(*modules):
    return {
        f"{i}.{name}": v.clone()
        for i, module in enumerate(modules)
        for name, v in module.state_dict().items()
    }


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def flat(value):
    """Return tensors, dicts and lists in a form whose equality is that of every bit."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: flat(entry) for key, entry in value.items()}
    return [flat(entry) for entry in value] if isinstance(value, list | tuple) else value


def untimed(records):
    """Return records without times, as text, since NaN is not equal to NaN."""
    return [
        json.dumps({key: value for key, value in record.items() if key != "seconds"})
        for record in records
    ]


def lines(folder):
    return read_log(folder / "log.jsonl")


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def short(**options):
    """Return arguments of fit: options of training, and whether to resume."""
    options = {"resume": False, "epochs": 4, "lr": 0.02, "log_every": 1, "num_samples": 3} | options
    return {"resume": options.pop("resume"), "options": TrainOptions(**options), "progress": False}


class Killed(Callback):
    """Ends a run after the first step that follows ``after`` whole epochs."""

    def __init__(self, *, after):
        self.after = after

    def on_train_step_end(self, trainer, outputs):
        if trainer.epoch == self.after:
            raise KeyboardInterrupt


def kill(batch):
    raise KeyboardInterrupt
