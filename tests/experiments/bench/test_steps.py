"""Every timed step computes all that its name says; the loop without Pyro computes what SVI computes."""

import pyro
import pytest
import torch

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.experiments.bench import steps, suites
from probattn.experiments.config import presets
from probattn.inference import ELBOLoss
from probattn.models import Classifier, ViT, last

LAYERS = {
    "softmax": SoftmaxAttention,
    "add": KEPSVGPAttention.partial(rank=3, merge="add", eta=2.0),
    "concat": KEPSVGPAttention.partial(rank=3, merge="concat", tokens=16, eta=10.0),
    "plain": KEPSVGPAttention.partial(rank=3, merge="concat_lowrank", tokens=16, bias=True, projection="plain"),
}


def built(attention):
    """−ELBO in float64, away from where it starts, and a batch."""
    torch.manual_seed(0)
    shape = {"image_size": 32, "patch_size": 8, "classes": 10, "dim": 12, "depth": 3, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(attention=last(2, attention, of=3), dropout=0.3, **shape), num_data=70).double()
    module = ELBOLoss(model, guides.for_model(model)).train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module, (torch.randn(5, 3, 32, 32).double(), torch.randint(10, (5,)))


@pytest.mark.parametrize("name", LAYERS)
def test_loss_and_gradients_without_pyro_are_those_of_svi(name, monkeypatch):
    module, batch = built(LAYERS[name])
    parameters = list(module.parameters())
    torch.manual_seed(1)
    by_svi = steps.negative_elbo(module, *batch) / 70
    gradients = torch.autograd.grad(by_svi, parameters)
    monkeypatch.setattr(pyro, "sample", lambda *args, **kwargs: pytest.fail("Pyro ran"))
    reference = steps.reference_loss(module.model, module.guide)
    torch.manual_seed(1)
    loss = reference(*batch)
    torch.testing.assert_close(loss, by_svi)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), gradients)
    assert min(gradient.abs().max() for gradient in gradients) > 0
    assert reference(*batch) != loss  # dropout and, if any, draws are new


def test_a_layer_step_is_forward_and_backward_of_the_whole_objective():
    layer = KEPSVGPAttention(8, 2, rank=2, merge="add", eta=1.0)
    norms = {name: [] for name, _ in layer.named_parameters()}
    for name, parameter in layer.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: norms[name].append(p.grad.norm().item()))
    step = steps.layer_step(lambda dim, heads: layer, dim=8, heads=2, batch=3, tokens=4)
    step()
    step()
    assert all(len(both) == 2 and both[0] > 0 for both in norms.values())
    assert sum(both[1] for both in norms.values()) < 2 * sum(both[0] for both in norms.values())  # they do not add up


def test_both_training_steps_change_every_weight(monkeypatch):
    modules, real = [], steps._step
    monkeypatch.setattr(steps, "_step", lambda loss, module: modules.append(module) or real(loss, module))
    settings = presets.preset("kep-svgp/cifar10").with_changes(
        ["network.dim=20", "network.heads=2", "network.depth=2", "network.mlp_dim=8", "data.batch_size=4"]
    )
    ways = steps.training_steps(settings, suites.random_images(4), device="cpu")
    for module, step in zip(modules, ways.values(), strict=True):
        before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        step()
        assert [name for name, parameter in module.named_parameters() if torch.equal(before[name], parameter)] == []
        assert all(parameter.grad is None for parameter in module.parameters())
