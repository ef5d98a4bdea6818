"""The loop without Pyro computes what SVI computes, and runs no Pyro."""

import copy

import pyro
import pytest
import torch

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.experiments.bench import reference_loop, steps
from probattn.models import Classifier, ViT, last
from probattn.sites import SiteModule

LAYERS = {
    "softmax": SoftmaxAttention,
    "add": KEPSVGPAttention.partial(rank=3, merge="add", eta=2.0),
    "concat": KEPSVGPAttention.partial(rank=3, merge="concat", tokens=16, eta=10.0),
    "lowrank": KEPSVGPAttention.partial(rank=3, merge="concat_lowrank", tokens=16, bias=True, projection="plain"),
}


def built(attention, number=1):
    """Model and guide in float64, away from where they start, and a batch."""
    torch.manual_seed(0)
    shape = {"image_size": 32, "patch_size": 8, "classes": 10, "dim": 12, "depth": 3, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(attention=last(number, attention, of=3), dropout=0.3, **shape), num_data=70).double()
    guide = guides.for_model(model)
    with torch.no_grad():
        for parameter in (*model.parameters(), *guide.parameters()):
            parameter += 0.1 * torch.randn_like(parameter)
    return model, guide, (torch.randn(5, 3, 32, 32).double(), torch.randint(10, (5,)))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_loss_and_gradients_are_those_of_svi(name, number):
    model, guide, batch = built(LAYERS[name], number)
    negative_elbo, parameters = steps.negative_elbo(model, *batch, guide=guide)
    torch.manual_seed(1)
    by_svi = negative_elbo() / model.num_data
    gradients = torch.autograd.grad(by_svi, parameters)
    torch.manual_seed(1)
    loss = reference_loop.loss(model, guide)(*batch)
    torch.testing.assert_close(loss, by_svi)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), gradients)
    assert min(gradient.abs().max() for gradient in gradients) > 0
    assert reference_loop.loss(model, guide)(*batch) != loss  # dropout and, if any, draws are new


def test_both_ways_train_alike():
    model, guide, (x, y) = built(LAYERS["add"])
    twin, its_guide = copy.deepcopy((model, guide))
    loss = reference_loop.loss(twin, its_guide)
    parameters = [*twin.parameters(), *its_guide.parameters()]
    ways = steps.svi_step(model, guide, x, y), steps.training_step(lambda: loss(x, y), parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    for step in ways:
        torch.manual_seed(2)
        for _ in range(3):
            step()
    after = [*model.parameters(), *guide.parameters()]
    for mine, theirs, old in zip(parameters, after, before, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert (mine - old).abs().max() > 1e-3  # three steps of Adam


def test_no_pyro_runs(monkeypatch):
    model, guide, batch = built(LAYERS["concat"])
    loss = reference_loop.loss(model, guide)
    for owner, name in ((SiteModule, "__call__"), (SiteModule, "sample"), (pyro, "sample")):
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: pytest.fail("Pyro ran"))
    loss(*batch).backward()
