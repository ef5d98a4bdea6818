"""Every timed step computes all that its name says, every time."""

import pyro
import pytest
import torch

from probattn import KEPSVGPAttention, guides
from probattn.experiments.bench import reference_loop, steps
from probattn.models import Classifier, ViT, last

SHAPE = {"image_size": 32, "patch_size": 8, "classes": 10, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def model_and_guide():
    kep_svgp = KEPSVGPAttention.partial(rank=2, merge="add")
    model = Classifier(ViT(attention=last(1, kep_svgp, of=2), dropout=0.5, **SHAPE), num_data=100)
    return model, guides.for_model(model)


def test_a_layer_step_is_forward_and_backward_of_the_whole_objective():
    layer = KEPSVGPAttention(8, 2, rank=2, merge="add", eta=1.0)
    gradients = {name: [] for name, _ in layer.named_parameters()}
    for name, parameter in layer.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradients[name].append(p.grad.clone()))
    step = steps.layer_step(lambda dim, heads: layer, 8, 2, batch=3, tokens=4)
    step()
    step()
    assert all(len(both) == 2 and both[0].abs().max() > 0 for both in gradients.values())
    sizes = [sum(both[number].square().sum() for both in gradients.values()) for number in (0, 1)]
    assert sizes[1] < 2 * sizes[0]  # gradients of a step do not add up over steps


def test_a_layer_and_its_guide_are_built_on_the_device():
    built = []

    def factory(dim, heads):
        built.append(KEPSVGPAttention(dim, heads, rank=2))
        return built[-1]

    with pyro.validation_enabled(False):
        steps.layer_step(factory, 8, 2, batch=3, tokens=4, device="meta")
    assert {parameter.device.type for parameter in built[0].parameters()} == {"meta"}


@pytest.mark.parametrize("way", ["SVI", "reference loop"])
def test_training_steps_change_every_weight(way):
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    model, guide = model_and_guide()
    parameters = {**dict(model.named_parameters()), **dict(guide.named_parameters())}
    if way == "SVI":
        step = steps.svi_step(model, guide, x, y)
    else:
        loss = reference_loop.loss(model, guide)
        step = steps.training_step(lambda: loss(x, y), parameters.values())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    step()
    assert [name for name, p in parameters.items() if torch.equal(before[name], p)] == []
    assert [name for name, p in parameters.items() if p.grad is not None] == []


def test_svi_trains_in_training_mode_and_a_forward_is_deterministic():
    model, guide = model_and_guide()
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    seen = []
    model.network.head.register_forward_hook(lambda module, inputs, output: seen.append((module.training, output)))
    steps.forward_step(model.network.train(), x)()
    assert seen[-1][0] is False
    assert not seen[-1][1].requires_grad
    steps.svi_step(model, guide, x, y)()
    assert seen[-1][0] is True
