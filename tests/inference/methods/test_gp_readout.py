"""The GP on last-layer features against exact GP regression, its own draws, and the network that it is put on."""

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probattn import KEPSVGPAttention, draws, guides, local_posteriors
from probattn.draws import at_mean
from probattn.functional.kernels import rbf
from probattn.inference import TrainOptions, fit, load, metrics, predict, save
from probattn.inference.methods import gp_readout
from probattn.inference.methods.gp_readout import NOISE, FeatureGP, GPReadout, with_gp_readout
from probattn.inference.prediction.predictor import PosteriorPredictive
from probattn.models import Classifier, ViT

CLASSES = 3


def vit(attention="softmax"):
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}
    return Classifier(ViT(**sizes, classes=CLASSES, attention=attention), num_data=60).double()


@pytest.fixture(params=["softmax", "kep-svgp"])
def fitted(request):
    model = vit(request.param)
    torch.manual_seed(1)
    x, y = torch.randn(60, 1, 4, 4, dtype=torch.float64), torch.randint(CLASSES, (60,))
    predictor = PosteriorPredictive(model, guides.for_model(model), num_samples=8)
    return predictor, with_gp_readout(predictor, [(x, y)], [(x[:30], y[:30])], anchors=20), x


def test_with_an_anchor_at_each_example_the_variance_is_that_of_exact_regression():
    torch.manual_seed(0)
    train, new = torch.randn(12, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    readout = FeatureGP(6, CLASSES, anchors=12).double()
    readout.place(train)
    psi, psi_new = readout.kernel_features(train), readout.kernel_features(new)
    covariance = torch.linalg.inv(torch.eye(12, dtype=psi.dtype) + psi.mT @ psi / NOISE**2)
    variance = 1 - psi_new.square().sum(-1) + ((psi_new @ covariance) * psi_new).sum(-1)
    points, others = (F.layer_norm(part, (6,)) / readout.lengthscale for part in (train, new))
    kernel = rbf(points, points) + NOISE**2 * torch.eye(12, dtype=psi.dtype)
    cross = rbf(others, points)
    torch.testing.assert_close(variance, 1 - (cross * torch.linalg.solve(kernel, cross.mT).mT).sum(-1))


def test_draws_have_the_variance_of_the_posterior(fitted):
    _, result, x = fitted
    model, guide = result.model, result.guide
    readout = model.network.head
    with torch.no_grad(), draws(20_000):
        hidden = torch.randn(2, 8, dtype=torch.float64)
        sampled = poutine.replay(local_posteriors(readout), poutine.trace(guide).get_trace(x))(hidden)
    psi = readout.processes[0].kernel_features(hidden)
    tril = guide.get_submodule("network.head.processes.0.u").scale_tril[0]
    variance = readout.amplitude**2 * (1 - psi.square().sum(-1) + (psi @ tril).square().sum(-1))
    torch.testing.assert_close(sampled.mean(0), readout.head(hidden) / readout.temperature, rtol=0, atol=0.3)
    torch.testing.assert_close(sampled.var(0), variance[:, None].expand(-1, CLASSES), rtol=0.05, atol=0)


@pytest.mark.parametrize("fitted", ["softmax"], indirect=True)
def test_the_posterior_is_that_of_bayesian_linear_regression(fitted):
    predictor, result, x = fitted
    readout = result.model.network.head.processes[0]
    hidden = []
    with predictor.model.network.head.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0])):
        predict(predictor.model, predictor.guide, x)
    psi = readout.kernel_features(torch.cat(hidden))
    covariance = torch.linalg.inv(torch.eye(20, dtype=psi.dtype) + psi.mT @ psi / NOISE**2)
    tril = result.guide.get_submodule("network.head.processes.0.u").scale_tril
    torch.testing.assert_close(tril @ tril.mT, covariance.expand(CLASSES, -1, -1))


def test_far_from_the_training_data_the_logits_have_the_variance_of_the_prior(fitted):
    readout = fitted[1].model.network.head.processes[0]
    readout.lengthscale.fill_(1e-3)
    psi = readout.kernel_features(torch.randn(4, 8, dtype=torch.float64))
    assert psi.square().sum(-1).max() < 1e-6


def test_the_network_below_is_copied_and_runs_as_before(fitted):
    predictor, result, x = fitted
    assert isinstance(predictor.model.network.head, nn.Linear)
    sites = {name for name, _ in guides.latent_sites(result.model)}
    assert sites == {name for name, _ in guides.latent_sites(predictor.model)} | {"network.head.processes.0.u"}
    calls = []
    with result.model.network.embed.register_forward_hook(lambda *_: calls.append(1)):
        prediction = predict(result.model, result.guide, x, num_samples=4, seed=0)
    assert len(calls) == 1
    assert (prediction.mutual_information > 0).all()


def test_is_saved_and_loaded(fitted, tmp_path):
    predictor, result, x = fitted
    save(tmp_path / "run.pt", result.model, result.guide)
    expected = predict(result.model, result.guide, x, seed=0).probs
    with torch.no_grad():
        for parameter in (*result.model.parameters(), *result.guide.parameters()):
            parameter.add_(1.0)
    load(tmp_path / "run.pt", result.model, result.guide)
    assert torch.equal(predict(result.model, result.guide, x, seed=0).probs, expected)


def test_trains_as_a_layer_of_a_network():
    model = vit(KEPSVGPAttention.partial(rank=2))
    model.network.head = GPReadout(model.network.head, anchors=5).double()
    model.set_path("")
    guide = guides.for_model(model)
    assert set(guide.sites) == {"network.blocks.0.attention.u", "network.head.processes.0.u"}
    x, y = torch.randn(20, 1, 4, 4, dtype=torch.float64), torch.randint(CLASSES, (20,))
    before = guide.get_submodule("network.head.processes.0.u").loc.detach().clone()
    fit(model, guide, [(x, y)], options=TrainOptions(epochs=2), progress=False)
    assert not torch.equal(guide.get_submodule("network.head.processes.0.u").loc, before)


def test_with_all_depths_each_block_has_its_gp():
    """The variance of the logits is that of the mean of the GPs, each on the mean token after its block."""
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "dim": 8, "depth": 3, "heads": 2, "mlp_dim": 8}
    attention = ["softmax", KEPSVGPAttention.partial(rank=2), "softmax"]
    model = Classifier(ViT(**sizes, classes=CLASSES, attention=attention), num_data=60).double()
    predictor = PosteriorPredictive(model, guides.for_model(model), num_samples=4)
    x, y = torch.randn(60, 1, 4, 4, dtype=torch.float64), torch.randint(CLASSES, (60,))
    result = with_gp_readout(predictor, [(x, y)], [(x[:30], y[:30])], anchors=10, depths="all")
    readout, pooled = result.model.network.head, []
    hooks = [
        block.register_forward_hook(lambda *run: pooled.append(run[-1].mean(-2))) for block in model.network.blocks
    ]
    with torch.no_grad(), at_mean():
        hidden = model.network.norm(model.network.blocks(model.network.tokens(x)).mean(-2))
        expected, new = model.network.head(hidden), result.model.network
        inputs = readout.split(new.norm(new.blocks(new.tokens(x)).mean(-2)))
    for hook in hooks:
        hook.remove()
    for ours, theirs in zip(inputs, [*pooled[:2], hidden], strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(readout.head(inputs[-1]), expected)
    variance = 0.0
    for depth, (process, part) in enumerate(zip(readout.processes, inputs, strict=True)):
        psi = process.kernel_features(part)
        tril = result.guide.get_submodule(f"network.head.processes.{depth}.u").scale_tril[0]
        variance = variance + (1 - psi.square().sum(-1) + (psi @ tril).square().sum(-1)) / 3
    stacked = torch.cat(inputs, -1)
    with torch.no_grad(), draws(20_000):
        u = poutine.trace(result.guide).get_trace(x)
        logits = poutine.replay(local_posteriors(readout), u)(stacked[:4])
    expected = (readout.amplitude**2 * variance[:4, None]).expand(-1, CLASSES)
    torch.testing.assert_close(logits.var(0), expected, rtol=0.06, atol=0)


def learnable():
    """A predictor, and data whose labels it gets right but for one in eight."""
    model = vit()
    torch.manual_seed(2)
    x = torch.randn(300, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        model.network.head.weight.mul_(6)
        y = model.network(x).argmax(-1)
    y[::8] = (y[::8] + 1) % CLASSES
    return PosteriorPredictive(model, guides.for_model(model), num_samples=40), [(x, y)]


def test_the_temperature_has_the_lowest_nll_of_the_predictor_itself(monkeypatch):
    monkeypatch.setattr(gp_readout, "AMPLITUDES", (3.0,))
    predictor, data = learnable()
    result = with_gp_readout(predictor, data, data, anchors=20)
    readout, losses = result.model.network.head, []
    chosen = readout.temperature.item()
    for factor in (0.8, 1.0, 1.25):
        readout.temperature.fill_(factor * chosen)
        torch.manual_seed(0)
        losses.append(metrics.nll(result.predict(data).probs, data[0][1]))
    assert min(losses) == losses[1]


def test_the_amplitude_is_the_largest_that_is_not_worse_by_more_than_its_standard_error(monkeypatch):
    predictor, data = learnable()
    losses = {}
    for amplitude in (0.5, 1.0, 2.0, 4.0, 8.0):
        monkeypatch.setattr(gp_readout, "AMPLITUDES", (amplitude,))
        torch.manual_seed(0)
        prediction = with_gp_readout(predictor, data, data, anchors=20).predict(data)
        losses[amplitude] = -prediction.log_prob(data[0][1])
    monkeypatch.setattr(gp_readout, "AMPLITUDES", tuple(losses))
    chosen = with_gp_readout(predictor, data, data, anchors=20).model.network.head.amplitude.item()
    excess = losses[chosen] - min(losses.values(), key=torch.mean)
    assert excess.mean() <= 1.5 * excess.std() / len(excess) ** 0.5  # of other samples than those that chose
    larger = [loss - min(losses.values(), key=torch.mean) for value, loss in losses.items() if value > chosen]
    assert all(gap.mean() > 0.5 * gap.std() / len(gap) ** 0.5 for gap in larger)
