"""Call layers on hostile inputs: finite numbers, or an error that says what is wrong; never NaN from finite inputs."""

import contextlib
import random
import warnings

import torch
from attention_layers import ANY_LENGTH
from torch import nn

from probattn import JitterWarning, KEPSVGPAttention, NumericalError, guides
from probattn.inference import ELBOLoss, predict
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

DIM, HEADS, CLASSES = 8, 2, 3
LAYERS = [*ANY_LENGTH.values(), KEPSVGPAttention.partial(rank=2, prior="horseshoe")]
INPUTS = [
    lambda x, _: x,
    lambda x, chosen: with_value(x, chosen, torch.nan),
    lambda x, chosen: with_value(x, chosen, 10 ** chosen.uniform(5, 38)),
    lambda x, chosen: x * 10 ** chosen.uniform(1, 30),
    lambda x, chosen: x * 10 ** chosen.uniform(-45, -3),
    lambda x, _: torch.zeros_like(x),
    lambda x, chosen: x[:, :1] + x * 10 ** chosen.uniform(-8, -1),  # nearly equal tokens
    lambda x, _: x[:1].expand_as(x),
    lambda x, _: x[:, :1],
    lambda x, _: x[:, :0],
    lambda x, _: x[:0],
    lambda x, chosen: x[..., : chosen.randrange(DIM)],
    lambda x, _: x[0],
    lambda x, _: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x, _: x.double(),
    lambda x, _: x.long(),
]
MASKS = [
    lambda x, _: (),
    lambda x, _: (torch.ones(x.shape[:2], dtype=torch.bool),),
    lambda x, _: (torch.arange(x.shape[1]) < torch.arange(1, 1 + len(x))[:, None],),
    lambda x, _: (torch.arange(len(x))[:, None] + torch.zeros(x.shape[1]) > 0,),  # an empty example
    lambda x, _: (torch.ones(len(x), x.shape[1] + 1, dtype=torch.bool),),  # another shape
]
ERRORS = (ValueError, TypeError, RuntimeError, IndexError, NumericalError)
"""Errors that PyTorch and this library raise for inputs that do not fit."""


class Network(nn.Module):
    """A layer with a linear head on the mean token."""

    def __init__(self, layer):
        super().__init__()
        self.attention, self.head = layer(DIM, HEADS), nn.Linear(DIM, CLASSES)

    def forward(self, x, mask=None):
        return self.head(self.attention(x, mask).mean(-2))


def with_value(x, chosen, value):
    x = x.clone()
    x[tuple(chosen.randrange(size) for size in x.shape)] = value
    return x


def fuzz_layers(chosen: random.Random) -> None:
    """Predict, and differentiate the ELBO, for one layer, one kind of input and one kind of mask."""
    torch.manual_seed(chosen.randrange(2**32))
    model = Supervised(Network(chosen.choice(LAYERS)), Categorical(), num_data=10)
    guide, usual = guides.for_model(model), torch.randn(chosen.randint(1, 4), chosen.randint(1, 9), DIM)
    x = chosen.choice(INPUTS)(usual, chosen)
    batch = (x, torch.arange(len(x)) % CLASSES, *chosen.choice(MASKS)(x if x.dim() > 2 else usual, chosen))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        with contextlib.suppress(*ERRORS):
            probs = predict(model, guide, [batch], num_samples=3).probs
            assert probs.shape == (len(x), CLASSES)
            assert probs.isfinite().all()
            assert ((probs.sum(-1) - 1).abs() < 1e-2).all()
        with contextlib.suppress(*ERRORS):
            loss = ELBOLoss(model, guide)(*batch)
            loss.backward()
            if x.isfinite().all() and x.abs().amax() < 1e3 and loss.isfinite():
                assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())
