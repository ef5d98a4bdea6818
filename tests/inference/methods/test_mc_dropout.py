"""Monte Carlo dropout against closed forms, masks replayed by hand, and the deterministic prediction."""

import pyro.poutine as poutine
import pytest
import torch
from dropout_networks import F64, chain, images, inputs, outputs, vit
from fitted_methods import mc_dropout
from pyro.infer.autoguide import AutoNormal
from pyro.poutine.messenger import Messenger
from torch import nn

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, guides, local_posteriors
from probattn.inference import predict
from probattn.inference.prediction import latents as latents_module
from probattn.messages import is_amortised
from probattn.models import Classifier, TextTransformer, replace_attention

KEP = KEPSVGPAttention.partial(rank=2)


def seeded(predictor, data, seed=3):
    torch.manual_seed(seed)
    return predictor(data)


def fields(result):
    return {name: getattr(result, name) for name in ("probs", "expected_entropy", "energy")}


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP, SGPAttention.partial(inducing=3), CGPAttention])
def test_rate_zero_is_the_prediction_without_dropout_bit_for_bit(attention):
    model, guide = vit(attention)
    model.train()
    data = [(images(), torch.tensor([0, 1, 2, 0])), (images(3), torch.tensor([2, 0, 1]))]
    ours = seeded(mc_dropout(model, guide, num_samples=5, rate=0).predict, data)
    plain = seeded(lambda data: predict(model, guide, data, num_samples=5), data)
    for name, value in fields(plain).items():
        assert torch.equal(getattr(ours, name), value), name
    assert not torch.allclose(seeded(mc_dropout(model, guide, num_samples=5).predict, data).probs, plain.probs)


def test_a_linear_networks_logits_have_the_moments_of_the_closed_form():
    """Dropout of the inputs x_j: mean w·x + b, covariance p/(1−p) Σ_j x_j² w_cj w_dj between logits."""
    model, _ = chain(nn.Dropout(0.3), nn.Linear(4, 3))
    x, log = torch.randn(2, 4, dtype=F64), outputs(model.network[1])
    number = 40_000
    mc_dropout(model, None, num_samples=number).predict(x)
    logits = torch.cat(log, 1)
    assert logits.shape == (number, 2, 3)
    weight, bias = model.network[1].weight.detach(), model.network[1].bias.detach()
    for i in range(2):
        covariance = 0.3 / 0.7 * (weight * x[i].square()) @ weight.T
        deviation = logits[:, i].mean(0) - (weight @ x[i] + bias)
        assert (deviation.abs() < 5 * (covariance.diagonal() / number).sqrt()).all()
        centred = logits[:, i] - (weight @ x[i] + bias)
        products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
        error = products.std(0) / number**0.5
        assert ((products.mean(0) - covariance).abs() < 5 * error).all()


def test_the_mean_is_over_the_draws_softmax():
    model, _ = chain(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    x, log = torch.randn(6, 4, dtype=F64), outputs(model.network[2])
    result = mc_dropout(model, None, num_samples=7).predict(x)
    (logits,) = log
    probs = logits.softmax(-1)
    torch.testing.assert_close(result.probs, probs.mean(0))
    torch.testing.assert_close(result.expected_entropy, -(probs * probs.log()).sum(-1).mean(0))
    torch.testing.assert_close(result.energy, -logits.exp().sum(-1).log().mean(0))
    assert (result.mutual_information > 1e-4).all()


def test_masks_differ_between_draws_and_between_examples():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(16, 3))
    log = inputs(model.network[1])
    mc_dropout(model, None, num_samples=6).predict(torch.ones(5, 16, dtype=F64))
    (dropped,) = log
    assert dropped.shape == (6, 5, 16)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert len(dropped.flatten(0, 1).unique(dim=0)) == 30


@pytest.mark.parametrize("number", [1, 4])
def test_layers_below_the_first_dropout_run_once(number):
    model, guide = vit(KEP, dropout=0.0, depth=3)
    model.network.blocks[1].mlp[2].p = 0.4
    shapes = {}
    for name in ("embed", "blocks.0", "blocks.1.attention", "blocks.1.mlp.0", "blocks.1.mlp.3", "blocks.2", "head"):
        module = model.network.get_submodule(name)
        module.register_forward_hook(
            lambda module, args, output, name=name: shapes.setdefault(name, []).append(tuple(output.shape))
        )
    mc_dropout(model, guide, num_samples=number).predict(images())
    assert {name: seen[0][:-1] for name, seen in shapes.items()} == {
        "embed": (4, 4),
        "blocks.0": (4, 4),
        "blocks.1.attention": (4, 4),
        "blocks.1.mlp.0": (4, 4),
        "blocks.1.mlp.3": (number, 4, 4),
        "blocks.2": (number, 4, 4),
        "head": (number, 4),
    }
    assert all(len(seen) == 1 for seen in shapes.values())


def outputs_by_hand(model, latents, masks, x, number):
    """Logits of each draw and each example alone, its latent draw and its masks put in by hand ``(S, n, classes)``."""
    rows = []
    for s in range(number):
        fixed = {name: node["value"][s, 0] for name, node in latents.nodes.items() if name.endswith(".u")}
        assert len(fixed) == sum(isinstance(module, KEPSVGPAttention) for module in model.modules())
        row = []
        for i in range(len(x)):
            handles = [
                module.register_forward_hook(
                    lambda module, args, output, mask=mask[s, i]: (args[0] * mask).view_as(output)
                )
                for module, mask in masks.items()
            ]
            row.append(poutine.condition(model.network, data=fixed)(x[i : i + 1])[0])
            for handle in handles:
                handle.remove()
        rows.append(torch.stack(row))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("first", ["below", "above"])
def test_draw_s_of_a_latent_site_goes_with_mask_s(monkeypatch, batch, first):
    """With batch 4 there are as many draws as examples and tokens, which must not be taken for each other."""
    model, guide = vit(KEP, depth=3, number=2, dropout=0.4)
    if first == "above":
        for module in (model.network.dropout, *model.network.blocks[0].modules()):
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.network.blocks[1].dropout.p = 0.0  # so that u of the second block comes before all dropout
    latents, original = [], latents_module._global_part
    monkeypatch.setattr(latents_module, "_global_part", lambda *args: latents.append(original(*args)) or latents[-1])
    x = images(batch)
    masks, handles = {}, []
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p > 0:

            def keep(module, args, output):
                masks[module] = torch.where(output == 0, 0.0, 2**16 / round(2**16 * 0.6)).unflatten(0, (4, batch))

            handles.append(module.register_forward_hook(keep, prepend=True))
    result = mc_dropout(model, guide, num_samples=4).predict(x)
    for handle in handles:
        handle.remove()
    model.eval()
    logits = outputs_by_hand(model, latents[0], masks, x, 4)
    torch.testing.assert_close(result.energy, -logits.logsumexp(-1).mean(0))
    torch.testing.assert_close(result.probs, logits.softmax(-1).mean(0))


class Laws(Messenger):
    """The posteriors that local latent sites are drawn from."""

    def __init__(self):
        super().__init__()
        self.means = []

    def _pyro_post_sample(self, msg):
        if is_amortised(msg):
            self.means.append(msg["infer"]["posterior"].mean)


@pytest.mark.parametrize("attention", [SGPAttention.partial(inducing=None), CGPAttention.partial(collapsed=True)])
def test_a_site_of_one_example_follows_the_mask_of_its_draw(attention):
    model, guide = vit(attention, dropout=0.5)
    layer = model.network.blocks[1].attention
    log = inputs(layer)
    with Laws() as laws:
        mc_dropout(model, guide, num_samples=5).predict(images())
    (x,) = log
    (mean,) = laws.means
    assert x.shape[:2] == mean.shape[:2] == (5, 4)
    model.eval()
    for s in range(5):
        with torch.no_grad(), Laws() as alone, local_posteriors():
            layer(x[s])
        torch.testing.assert_close(mean[s], alone.means[0])
    assert not torch.allclose(mean[0], mean[1])


@pytest.mark.parametrize(("number", "batch"), [(5, 4), (2, 3)])
def test_inducing_inputs_are_left_whole(number, batch):
    """They go through the blocks below, with heads and inducing keys where draws and examples stand: (2, 3, dim)."""
    model, guide = vit(SGPAttention.partial(inducing=3), dropout=0.5)
    layer, seen = model.network.blocks[1].attention, []
    original = layer.inducing_points
    layer.inducing_points = lambda: seen.append(original()) or seen[-1]
    mc_dropout(model, guide, num_samples=number).predict(images(batch))
    (points,) = seen
    model.eval()
    assert points.shape[:2] == (2, 3)
    assert torch.equal(points, original())


def test_the_same_seed_gives_the_same_and_each_call_new_masks():
    model, guide = vit()
    predictor, x = mc_dropout(model, guide, num_samples=3), images()
    first = seeded(predictor.predict, x)
    assert torch.equal(first.probs, seeded(predictor.predict, x).probs)
    assert not torch.equal(first.probs, predictor.predict(x).probs)


def test_an_auto_guide_without_parameters_is_made_first():
    model, _ = vit(KEP)
    guide = AutoNormal(local_posteriors(model))
    data = [(images(), torch.tensor([0, 1, 2, 0]))]
    result = mc_dropout(model, guide.double(), num_samples=3).predict(data)
    assert result.probs.shape == (4, 3)
    assert (result.mutual_information > 0).all()


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP])
@pytest.mark.parametrize("batch", [3, 4])
def test_draws_that_appear_in_a_converted_part_are_known_behind_it(batch, attention):
    """Also where the batch is as large as the number of draws; every draw and example has masks of its own."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    encoder = replace_attention(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), attention=attention)
    sizes = {"dim": 4, "depth": 1, "heads": 2, "mlp_dim": 8}
    network = TextTransformer(encoder, max_length=5, classes=3, dropout=0.3, **sizes)
    model = Classifier(network, num_data=9).double()
    guide, data = guides.for_model(model), [(torch.randn(1, 5, 4, dtype=F64).repeat(batch, 1, 1), None)]
    log = outputs(network)
    mc_dropout(model, guide, num_samples=3).predict(data)
    assert log[0].shape == (3, batch, 3)
    assert len(log[0].flatten(0, 1).unique(dim=0)) == 3 * batch
    without = seeded(mc_dropout(model, guide, num_samples=3, rate=0).predict, data)
    torch.manual_seed(3)
    assert torch.allclose(without.probs, predict(model, guide, data, num_samples=3).probs, atol=1e-12)
