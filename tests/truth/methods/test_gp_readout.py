"""The GP on last-layer features against exact GP regression, its own draws, and the network that it
is put on."""

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from float64 import eye64, randn64
from small_vit import small_vit
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, guides, local_posteriors
from probattn.draws import at_mean
from probattn.functional.kernels import rbf
from probattn.inference import TrainOptions, fit, metrics, predict
from probattn.inference.methods import gp_readout
from probattn.inference.methods.gp_readout import NOISE, FeatureGP, GPReadout, with_gp_readout
from probattn.inference.prediction.predictor import PosteriorPredictive
from probattn.models import Classifier

CLASSES, F64 = 3, torch.float64


def vit(attention="softmax", depth=1):
    return Classifier(small_vit(attention, depth=depth), num_data=60).double()


def with_readout(attention, **options):
    model = vit(attention, depth=3 if options else 1)
    x, y = randn64(60, 1, 4, 4), torch.randint(CLASSES, (60,))
    predictor = PosteriorPredictive(model, guides.for_model(model), num_samples=8)
    return (
        predictor,
        with_gp_readout(predictor, [(x, y)], [(x[:30], y[:30])], anchors=20, **options),
        x,
    )


def posterior_variance(result, features):
    """Variance of the mean of the GPs over depths, 1 − ‖ψ‖² + ψᵀ S ψ each."""
    readout, parts = result.model.network.head, []
    for depth, (process, hidden) in enumerate(zip(readout.processes, features, strict=True)):
        psi = process.kernel_features(hidden)
        tril = result.guide.get_submodule(f"network.head.processes.{depth}.u").scale_tril[0]
        parts.append(1 - psi.square().sum(-1) + (psi @ tril).square().sum(-1))
    return readout.amplitude**2 * torch.stack(parts).mean(0)


def sampled_logits(result, hidden, x):
    with torch.no_grad(), draws(10_000):
        u = poutine.trace(result.guide.sample_global).get_trace(x)
        return poutine.replay(local_posteriors(result.model.network.head), u)(hidden)


def test_with_an_anchor_at_each_example_the_variance_is_that_of_exact_regression():
    train, new = randn64(12, 6), randn64(5, 6)
    readout = FeatureGP(6, CLASSES, anchors=12).double()
    readout.place(train)
    psi, tril = readout.kernel_features(new), readout.posterior_tril(train)
    variance = 1 - psi.square().sum(-1) + (psi @ tril).square().sum(-1)
    points, others = (F.layer_norm(part, (6,)) / readout.lengthscale for part in (train, new))
    kernel, cross = rbf(points, points) + NOISE**2 * eye64(12), rbf(others, points)
    assert_close(variance, 1 - (cross * torch.linalg.solve(kernel, cross.mT).mT).sum(-1))


@pytest.mark.parametrize("attention", ["softmax", "kep-svgp"])
def test_draws_have_the_mean_of_the_head_and_the_variance_of_the_posterior(attention):
    _, result, x = with_readout(attention)
    readout, hidden = result.model.network.head, randn64(2, 8)
    logits = sampled_logits(result, hidden, x)
    variance = posterior_variance(result, [hidden])[:, None]
    error = 5 * (variance.max().item() / 10_000) ** 0.5
    assert_close(logits.mean(0), readout.head(hidden) / readout.temperature, rtol=0, atol=error)
    assert_close(logits.var(0), variance.expand(-1, CLASSES), rtol=0.07, atol=0)


def test_the_posterior_is_that_of_bayesian_linear_regression_on_the_features_of_training():
    predictor, result, x = with_readout("softmax")
    readout, hidden = result.model.network.head.processes[0], []
    with predictor.model.network.head.register_forward_pre_hook(
        lambda _, inputs: hidden.append(inputs[0])
    ):
        predict(predictor.model, predictor.guide, x)
    psi = readout.kernel_features(torch.cat(hidden))
    covariance = torch.linalg.inv(eye64(20) + psi.mT @ psi / NOISE**2)
    tril = result.guide.get_submodule("network.head.processes.0.u").scale_tril
    assert_close(tril @ tril.mT, covariance.expand(CLASSES, -1, -1))
    readout.lengthscale.fill_(
        1e-3
    )  # far from all training data logits have the variance of the prior
    assert readout.kernel_features(randn64(4, 8)).abs().max() < 1e-3


def test_with_all_depths_each_block_has_its_gp():
    """The variance of the logits is that of the mean of the GPs, each on the mean token after its
    block."""
    predictor, result, x = with_readout(
        ["softmax", KEPSVGPAttention.partial(rank=2), "softmax"], depths="all"
    )
    network, new, pooled = predictor.model.network, result.model.network, []
    for block in network.blocks:
        block.register_forward_hook(lambda *run: pooled.append(run[-1].mean(-2)))
    with torch.no_grad(), at_mean():
        hidden = network.norm(network.blocks(network.tokens(x)).mean(-2))
        inputs = new.head.split(new.norm(new.blocks(new.tokens(x)).mean(-2)))
        assert_close(new.head.head(inputs[-1]), network.head(hidden))
    for ours, theirs in zip(inputs, [*pooled[:2], hidden], strict=True):
        assert_close(ours, theirs)
    logits = sampled_logits(result, torch.cat(inputs, -1)[:4], x)
    expected = posterior_variance(result, [part[:4] for part in inputs])[:, None].expand(
        -1, CLASSES
    )
    assert_close(logits.var(0), expected, rtol=0.07, atol=0)


def test_it_trains_as_a_layer_of_a_network():
    model = vit(KEPSVGPAttention.partial(rank=2))
    model.network.head = GPReadout(model.network.head, anchors=5).double()
    model.set_path("")
    guide = guides.for_model(model)
    posterior = guide.get_submodule("network.head.processes.0.u")
    x, y = randn64(20, 1, 4, 4), torch.randint(CLASSES, (20,))
    before = posterior.loc.detach().clone()
    fit(model, guide, [(x, y)], options=TrainOptions(epochs=1), progress=False)
    assert not torch.equal(posterior.loc, before)


@pytest.fixture
def learnable():
    """A predictor, and data whose labels it gets right but for one in eight."""
    model = vit()
    x = randn64(100, 1, 4, 4)
    with torch.no_grad():
        model.network.head.weight.mul_(6)
        y = model.network(x).argmax(-1)
    y[::8] = (y[::8] + 1) % CLASSES
    return PosteriorPredictive(model, guides.for_model(model), num_samples=40), [(x, y)]


def test_the_temperature_has_the_lowest_nll_of_the_predictor_itself(monkeypatch, learnable):
    monkeypatch.setattr(gp_readout, "AMPLITUDES", (3.0,))
    predictor, data = learnable
    result = with_gp_readout(predictor, data, data, anchors=20)
    readout, losses = result.model.network.head, []
    chosen = readout.temperature.item()
    for factor in (0.8, 1.0, 1.25):
        readout.temperature.fill_(factor * chosen)
        torch.manual_seed(0)
        losses.append(metrics.nll(result.predict(data).probs, data[0][1]))
    assert min(losses) == losses[1]


def test_the_amplitude_is_the_largest_that_is_not_worse_by_more_than_its_standard_error(
    monkeypatch, learnable
):
    """The loss is that of 40 samples, on average over 20 times 40 samples, here others than those
    that chose."""
    predictor, data = learnable
    labels, amplitudes, losses = data[0][1], (0.35, 0.7, 1.4, 2.8), []
    monkeypatch.setattr(gp_readout, "REPEATS", 20)
    for amplitude in amplitudes:
        monkeypatch.setattr(gp_readout, "AMPLITUDES", (amplitude,))
        result = with_gp_readout(predictor, data, data, anchors=20)
        samples = predict(
            result.model, result.guide, data, num_samples=20 * 40, seed=0, keep_draws=True
        ).draws
        probs = samples.unflatten(0, (20, 40)).mean(1)
        losses.append(-probs[:, torch.arange(len(labels)), labels].log())
    monkeypatch.setattr(gp_readout, "AMPLITUDES", amplitudes)
    chosen = amplitudes.index(
        with_gp_readout(predictor, data, data, anchors=20).model.network.head.amplitude
    )
    excess = torch.stack(losses) - min(losses, key=torch.mean)  # (amplitudes, repeats, examples)
    mean, error = excess.mean((1, 2)), excess.mean(1).std(-1) / len(labels) ** 0.5
    noise = 5 * 2 * excess.mean(-1).std(-1) / 20**0.5  # of the difference of two differences
    assert mean[chosen] <= error[chosen] + noise[chosen] + 1e-6
    assert (mean > error - noise)[chosen + 1 :].all()
