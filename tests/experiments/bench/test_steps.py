"""Every timed step computes all that its name says."""

import torch

from probattn import KEPSVGPAttention
from probattn.experiments.bench import steps, suites
from probattn.experiments.config import presets
from probattn.experiments.runs.build import build
from probattn.inference import ELBOLoss


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


def test_a_training_step_changes_every_weight():
    changes = ["network.dim=20", "network.heads=2", "network.depth=2", "network.mlp_dim=8", "data.batch_size=4"]
    settings = presets.preset("kep-svgp/cifar10").with_changes(changes)
    data = suites.random_images(4)
    module = ELBOLoss(*build(settings, data)).train()
    step = steps.step(module, *data.sample(4, generator=torch.Generator()))
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    step()
    after = dict(module.named_parameters())
    assert [name for name, value in before.items() if value.equal(after[name])] == []
    assert all(parameter.grad is None for parameter in after.values())
