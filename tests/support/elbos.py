"""Pyro's ELBOs by :class:`probattn.inference.ELBOLoss`, called as Pyro's own are, and comparisons
of estimates."""

import pyro.infer
import torch

from probattn import draws
from probattn.inference import ELBOLoss


class _Through:
    kind = pyro.infer.ELBO

    def __init__(self, **options):
        self.options, self.last = options, None

    def __call__(self, model, guide):
        self.last = ELBOLoss(model, guide, self.kind(**self.options))
        return self.last

    def differentiable_loss(self, model, guide, *args):
        return self(model, guide)(*args)

    def loss(self, model, guide, *args):
        return self(model, guide)(*args).item()

    def terms(self):
        return {name: value.item() for name, value in self.last.terms().items()}

    @property
    def traces(self):
        return self.last.traces


class Trace_ELBO(_Through):  # noqa: N801 - Pyro's name
    kind = pyro.infer.Trace_ELBO


class TraceMeanField_ELBO(_Through):  # noqa: N801 - Pyro's name
    kind = pyro.infer.TraceMeanField_ELBO


ELBOS = {"trace": Trace_ELBO, "mean_field": TraceMeanField_ELBO}


def losses(kind, model, guide, *data, number=100, **options):
    """Estimates of one loss."""
    return torch.tensor([kind().loss(model, guide, *data, **options) for _ in range(number)])


def assert_agree(first, *others):
    """Check that the means of estimates differ by at most 5 standard errors."""
    for other in others:
        error = (first.var() / len(first) + other.var() / len(other)).sqrt()
        assert (other.mean() - first.mean()).abs() < 5 * error + 1e-3


def loss_and_gradients(elbo, model, guide, data, *, seed=2):
    """−ELBO at a draw for each example, and its gradients, by name."""
    torch.manual_seed(seed)
    model.zero_grad(), guide.zero_grad()
    with draws("example"):
        loss = elbo(model, guide)(*data)
    loss.backward()
    parameters = {**dict(model.named_parameters()), **dict(guide.named_parameters(prefix="guide"))}
    return {"loss": loss.detach()} | {
        name: p.grad.clone() for name, p in parameters.items() if p.grad is not None
    }
