"""Pyro's ELBOs by :class:`probattn.inference.ELBOLoss`, called as Pyro's own are."""

import pyro.infer

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
