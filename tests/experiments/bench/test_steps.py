"""Every timed step computes all that its name says."""

from probattn import KEPSVGPAttention
from probattn.experiments.bench import steps, suites
from probattn.experiments.config import presets


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


def test_a_training_step_changes_every_weight(monkeypatch):
    modules, real = [], steps._step
    monkeypatch.setattr(steps, "_step", lambda loss, module: modules.append(module) or real(loss, module))
    changes = ["network.dim=20", "network.heads=2", "network.depth=2", "network.mlp_dim=8", "data.batch_size=4"]
    settings = presets.preset("kep-svgp/cifar10").with_changes(changes)
    step = steps.training_step(settings, suites.random_images(4), device="cpu")
    before = {name: parameter.detach().clone() for name, parameter in modules[0].named_parameters()}
    step()
    after = dict(modules[0].named_parameters())
    assert [name for name, value in before.items() if value.equal(after[name])] == []
    assert all(parameter.grad is None for parameter in after.values())
