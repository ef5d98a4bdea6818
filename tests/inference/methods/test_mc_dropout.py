"""Monte Carlo dropout against closed forms, masks replayed by hand, and the deterministic prediction."""

import math

import pyro
import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch import nn

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides
from probattn.handlers import is_amortised, local_posteriors
from probattn.inference import predict
from probattn.inference.methods.mc_dropout import active_dropout, mc_dropout
from probattn.inference.prediction import latents as latents_module
from probattn.models import Classifier, TextTransformer, ViT, last, replace_attention

F64 = torch.float64
KEP = KEPSVGPAttention.partial(rank=2)


def vit(attention=SoftmaxAttention, *, dropout=0.3, depth=2, number=1):
    network = ViT(
        image_size=4,
        patch_size=2,
        channels=1,
        classes=3,
        dim=4,
        depth=depth,
        heads=2,
        mlp_dim=6,
        dropout=dropout,
        attention=last(number, attention, of=depth),
    )
    model = Classifier(network, num_data=9).double()
    return model, guides.for_model(model)


def chain(*layers):
    """A classifier of vectors, with names as in a sequence."""
    model = Classifier(PyroModule[nn.Sequential](*layers), num_data=9).double()
    return model, guides.for_model(model)


def images(batch=4):
    return torch.randn(batch, 1, 4, 4, dtype=F64)


def seeded(predictor, data, seed=3):
    torch.manual_seed(seed)
    return predictor(data)


def fields(result):
    return {name: getattr(result, name) for name in ("probs", "expected_entropy", "energy")}


def inputs(module):
    """A list to which the module's input at each call is added."""
    log = []
    module.register_forward_pre_hook(lambda module, args: log.append(args[0].detach().clone()))
    return log


def outputs(module):
    """A list to which the module's output at each call is added."""
    log = []
    module.register_forward_hook(lambda module, args, output: log.append(output.detach().clone()))
    return log


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP, SGPAttention.partial(inducing=3), CGPAttention])
def test_rate_zero_is_the_prediction_without_dropout_bit_for_bit(attention):
    model, guide = vit(attention)
    model.train()
    data = [(images(), torch.tensor([0, 1, 2, 0])), (images(3), torch.tensor([2, 0, 1]))]
    ours = seeded(mc_dropout(model, guide, num_samples=5, rate=0), data)
    plain = seeded(lambda data: predict(model, guide, data, num_samples=5), data)
    for name, value in fields(plain).items():
        assert torch.equal(getattr(ours, name), value), name
    assert not torch.allclose(seeded(mc_dropout(model, guide, num_samples=5), data).probs, plain.probs)


def test_a_linear_networks_logits_have_the_moments_of_the_closed_form():
    """Dropout of the inputs x_j: mean w·x + b, covariance p/(1−p) Σ_j x_j² w_cj w_dj between logits."""
    model, _ = chain(nn.Dropout(0.3), nn.Linear(4, 3))
    x, log = torch.randn(2, 4, dtype=F64), outputs(model.network[1])
    number = 40_000
    mc_dropout(model, None, num_samples=number)(x)
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
    result = mc_dropout(model, None, num_samples=7)(x)
    (logits,) = log
    probs = logits.softmax(-1)
    torch.testing.assert_close(result.probs, probs.mean(0))
    torch.testing.assert_close(result.expected_entropy, -(probs * probs.log()).sum(-1).mean(0))
    torch.testing.assert_close(result.energy, -logits.exp().sum(-1).log().mean(0))
    assert (result.mutual_information > 1e-4).all()


def test_masks_differ_between_draws_and_between_examples():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(16, 3))
    log = inputs(model.network[1])
    mc_dropout(model, None, num_samples=6)(torch.ones(5, 16, dtype=F64))
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
    mc_dropout(model, guide, num_samples=number)(images())
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
                masks[module] = torch.where(output == 0, 0.0, 1 / 0.6).unflatten(0, (4, batch))

            handles.append(module.register_forward_hook(keep, prepend=True))
    result = mc_dropout(model, guide, num_samples=4)(x)
    for handle in handles:
        handle.remove()
    model.eval()
    logits = outputs_by_hand(model, latents[0], masks, x, 4)
    torch.testing.assert_close(result.energy, -logits.logsumexp(-1).mean(0))
    torch.testing.assert_close(result.probs, logits.softmax(-1).mean(0))


class Laws(Messenger):
    """The laws that local latent sites are drawn from."""

    def __init__(self):
        super().__init__()
        self.means = []

    def _pyro_post_sample(self, msg):
        if is_amortised(msg):
            self.means.append(msg["fn"].mean)


@pytest.mark.parametrize("attention", [SGPAttention.partial(inducing=None), CGPAttention.partial(collapsed=True)])
def test_a_site_of_one_example_follows_the_mask_of_its_draw(attention):
    model, guide = vit(attention, dropout=0.5)
    layer = model.network.blocks[1].attention
    log = inputs(layer)
    with Laws() as laws:
        mc_dropout(model, guide, num_samples=5)(images())
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
    mc_dropout(model, guide, num_samples=number)(images(batch))
    (points,) = seen
    model.eval()
    assert points.shape[:2] == (2, 3)
    assert torch.equal(points, original())


def test_attention_dropout_is_one_of_them():
    """With values of 1, an output is the sum of those attention probabilities that are kept, times two."""
    model, _ = chain(SoftmaxAttention(4, 2, dropout=0.5), nn.Flatten(-2), nn.Linear(12, 3))
    layer = model.network[0]
    with torch.no_grad():
        layer.query_key_value.weight[8:] = 0.0
        layer.query_key_value.weight[8:, 0] = 1.0
        layer.out.weight.copy_(torch.eye(4))
        layer.out.bias.zero_()
    log = outputs(layer)
    x = torch.randn(2, 3, 4, dtype=F64)
    x[..., 0] = 1.0
    mc_dropout(model, None, num_samples=4000)(x)
    sums = torch.cat(log, 1)[..., 0]
    variance = layer.attention_matrix(x)[:, 0].detach().square().sum(-1)  # p / (1 − p) Σ_j a_j²
    assert sums.shape == (4000, 2, 3)
    assert ((sums.mean(0) - 1).abs() < 5 * (variance / 4000).sqrt()).all()
    torch.testing.assert_close(sums.var(0), variance, rtol=0.2, atol=0)


def test_a_rate_replaces_those_of_the_layers_and_is_put_back():
    model, _ = chain(SoftmaxAttention(8, 2), nn.Flatten(-2), nn.Dropout(0.0), nn.Dropout(0.9), nn.Linear(24, 3))
    attention, _, first, second, _ = model.network
    with active_dropout(model, rate=0.25):
        assert (attention.dropout, first.p, second.p) == (0.25, 0.25, 0.25)
        log = inputs(model.network[3])
        model.eval()
        model(torch.randn(400, 3, 8, dtype=F64))
    assert (attention.dropout, first.p, second.p) == (0.0, 0.0, 0.9)
    share = (log[0] == 0).double().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / log[0].numel()) ** 0.5


def test_the_same_seed_gives_the_same_and_each_call_new_masks():
    model, guide = vit()
    predictor, x = mc_dropout(model, guide, num_samples=3), images()
    first = seeded(predictor, x)
    assert torch.equal(first.probs, seeded(predictor, x).probs)
    assert not torch.equal(first.probs, predictor(x).probs)


class Raising(nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("where", [nn.Dropout, SoftmaxAttention])
def test_hooks_and_modes_are_as_before_also_when_the_model_raises(broken, where):
    middle = nn.Dropout(0.5) if where is nn.Dropout else SoftmaxAttention(4, 2, dropout=0.5)
    model, guide = chain(middle, Raising() if broken else nn.Identity(), nn.Flatten(-2), nn.Linear(12, 3))
    model.train()
    model.network[3].eval()
    modes = [module.training for module in model.modules()]
    x = torch.randn(2, 3, 4, dtype=F64)
    predictor = mc_dropout(model, guide, num_samples=2)
    if broken:
        with pytest.raises(RuntimeError, match="broken"):
            predictor(x)
    else:
        predictor(x)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not pyro.poutine.runtime._PYRO_STACK


def test_modes_are_put_back_without_predict():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(4, 3))
    model.eval()
    x = torch.ones(50, 4, dtype=F64)
    with active_dropout(model):
        model(x)
    assert not any(module.training for module in model.modules())


def test_outside_of_draws_a_pass_has_one_mask_per_example():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(4, 3))
    model.eval()
    x, log = torch.ones(50, 4, dtype=F64), inputs(model.network[1])
    with active_dropout(model):
        model(x)
        with draws("example"):
            poutine.trace(model).get_trace(x)
    assert [dropped.shape for dropped in log] == [x.shape, x.shape]
    assert all(set(dropped.unique().tolist()) == {0.0, 2.0} for dropped in log)
    model(x)
    assert torch.equal(log[2], x)


def test_batch_norm_stays_in_evaluation_mode():
    model, _ = chain(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    norm = model.network[1]
    before, modes = norm.running_mean.clone(), []
    norm.register_forward_hook(lambda module, args, output: modes.append(module.training))
    mc_dropout(model.train(), None, num_samples=3)(torch.randn(8, 4, dtype=F64))
    assert modes == [False]
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("batch", [1, 3])
def test_whole_channels_are_dropped_in_each_draw_and_example(batch):
    model, _ = chain(nn.Dropout1d(0.5), nn.Flatten(-2), nn.Linear(40, 3))
    log = inputs(model.network[1])
    mc_dropout(model, None, num_samples=5)(torch.ones(batch, 8, 5, dtype=F64))
    channels = log[0].amax(-1)
    assert torch.equal(log[0].amin(-1), channels)
    assert channels.shape == (5, batch, 8)
    assert len(channels.flatten(0, 1).unique(dim=0)) > 3 * batch


@pytest.mark.parametrize("batch", [1, 4])
def test_dropout_in_place_does_not_touch_what_draws_share(batch):
    model, _ = chain(nn.Linear(8, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 3))
    log = inputs(model.network[2])
    mc_dropout(model, None, num_samples=6)(torch.randn(batch, 8, dtype=F64))
    assert len(log[0].flatten(0, 1).unique(dim=0)) == 6 * batch


def test_an_auto_guide_without_parameters_is_made_first():
    model, _ = vit(KEP)
    guide = AutoNormal(guides.global_part(model))
    data = [(images(), torch.tensor([0, 1, 2, 0]))]
    result = mc_dropout(model, guide.double(), num_samples=3)(data)
    assert result.probs.shape == (4, 3)
    assert (result.mutual_information > 0).all()


class Pooled(nn.Module):
    """Averages over the examples, where it is not given draws."""

    def forward(self, x):
        return x.mean(0)


def test_a_layer_that_loses_draws_or_batch_is_found_at_the_next_dropout():
    model, _ = chain(nn.Dropout(0.5), Pooled(), nn.Dropout(0.5), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"dropout at network\.2 .* shape \(3, 4\).* start with \(5, 3\)"):
        mc_dropout(model, None, num_samples=5)(torch.randn(3, 4, dtype=F64))
    model, _ = chain(nn.Flatten(0, 1), nn.Dropout(0.5), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"dropout at network\.1 .* shape \(6, 4\).* start with \(3,\)"):
        mc_dropout(model, None, num_samples=5)(torch.randn(3, 2, 4, dtype=F64))


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_torchs_attention_drops_out_but_takes_no_draws():
    model, _ = chain(Foreign(), nn.Flatten(-2), nn.Linear(12, 3))
    with pytest.raises(ValueError, match=r"network\.0\.attention is an nn\.MultiheadAttention.* use SoftmaxAttention"):
        mc_dropout(model, None)(torch.randn(2, 3, 4, dtype=F64))
    x = torch.randn(1, 3, 4, dtype=F64).expand(64, 3, 4)
    model.eval()
    with torch.no_grad(), active_dropout(model):
        logits = model.network(x)
    assert len(logits.unique(dim=0)) > 20


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_rate_out_of_bounds_is_refused(rate):
    model, guide = vit()
    with pytest.raises(ValueError, match=r"a dropout rate lies in \[0, 1\)"):
        mc_dropout(model, guide, rate=rate)(images())


def test_a_model_without_dropout_is_refused_unless_a_rate_is_given():
    model, guide = vit(dropout=0.0)
    with pytest.raises(ValueError, match="all dropout rates of this model are 0: .*rate="):
        mc_dropout(model, guide)
    assert (mc_dropout(model, guide, rate=0.2)(images()).mutual_information > 0).all()
    mc_dropout(model, guide, rate=0)
    model, guide = chain(nn.Linear(4, 3))
    for rate in (None, 0.5):
        with pytest.raises(ValueError, match="no dropout module"):
            mc_dropout(model, guide, rate=rate)
    x = torch.randn(2, 4, dtype=F64)
    torch.testing.assert_close(mc_dropout(model, guide, rate=0)(x).probs, F.softmax(model.network(x), -1).detach())


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
    mc_dropout(model, guide, num_samples=3)(data)
    assert log[0].shape == (3, batch, 3)
    assert len(log[0].flatten(0, 1).unique(dim=0)) == 3 * batch
    without = seeded(mc_dropout(model, guide, num_samples=3, rate=0), data)
    torch.manual_seed(3)
    assert torch.allclose(without.probs, predict(model, guide, data, num_samples=3).probs, atol=1e-12)
