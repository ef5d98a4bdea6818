"""The posterior predictive against the network run by hand at every draw and example."""

import math

import pyro.distributions as dist
import pytest
import torch
from known_predictives import F64, build, predicted_and_outputs

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.inference import Prediction, predict
from probattn.inference.prediction.aggregate import summarise
from probattn.models.likelihoods import Bernoulli, Gaussian, TokenCategorical


@pytest.mark.parametrize(("num_samples", "batch"), [(1, 4), (4, 4), (7, 1)])
def test_classes_by_hand(num_samples, batch):
    """Also as many draws as examples, which must not be paired."""
    model, guide = build()
    with torch.no_grad():
        model.network.head.weight.mul_(10)
    x, y = torch.randn(batch, 5, 3, dtype=F64), torch.arange(batch) % 3
    result, logits = predicted_and_outputs(model, guide, x, num_samples=num_samples)
    probs = logits.softmax(-1)
    torch.testing.assert_close(result.draws, probs)
    torch.testing.assert_close(result.probs, probs.mean(0))
    for i in range(batch):
        mean = [sum(probs[:, i, c].tolist()) / num_samples for c in range(3)]
        entropy = -sum(p * math.log(p) for p in mean)
        expected = sum(-sum(p * math.log(p) for p in draw) for draw in probs[:, i].tolist()) / num_samples
        energy = sum(-math.log(sum(map(math.exp, draw))) for draw in logits[:, i].tolist()) / num_samples
        assert result.entropy[i].item() == pytest.approx(entropy)
        assert result.expected_entropy[i].item() == pytest.approx(expected)
        assert result.mutual_information[i].item() == pytest.approx(entropy - expected, abs=1e-12)
        assert result.energy[i].item() == pytest.approx(energy)
        assert result.log_prob(y)[i].item() == pytest.approx(math.log(mean[y[i]]))
        assert result.predicted[i] == max(range(3), key=mean.__getitem__)
        assert result.confidence[i].item() == pytest.approx(max(mean))
    assert num_samples == 1 or (result.mutual_information > 1e-6).all()


def test_a_network_without_latent_sites_predicts_its_softmax():
    model, guide = build(attention=SoftmaxAttention)
    x = torch.randn(4, 5, 3, dtype=F64)
    logits = model.eval().network(x).detach()
    for source in (guide, None):
        result = predict(model, source, x, num_samples=3, keep_draws=True)
        torch.testing.assert_close(result.draws, logits.softmax(-1).expand(3, 4, 3))
        torch.testing.assert_close(result.probs, logits.softmax(-1))
        torch.testing.assert_close(result.energy, -logits.logsumexp(-1))
        torch.testing.assert_close(result.mutual_information, torch.zeros(4, dtype=F64), atol=1e-12, rtol=0)


def test_without_a_guide_draws_come_from_the_prior():
    model, _ = build()
    scale = torch.tensor([[0.1, 5.0], [1.0, 0.5]], dtype=F64)
    with torch.no_grad():
        for layer in model.network.layers:
            layer.log_scale.copy_(scale.log())
            layer.out.weight.copy_(torch.eye(4))
    x = torch.randn(2, 5, 3, dtype=F64)
    result, logits = predicted_and_outputs(model, None, x, num_samples=6)
    torch.testing.assert_close(result.probs, logits.softmax(-1).mean(0))
    # The first layer's output is (E + R) Λ⁻¹ u with u ~ N(0, Λ²).
    outputs = []
    hook = model.network.layers[0].register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    predict(model, None, x, num_samples=4000)
    hook.remove()
    with torch.no_grad():
        e, r, _, _ = model.network.layers[0].scores(model.network.embed(x))
    expected = (e + r).square().sum(-1).mT.unsqueeze(-1).expand(2, 5, 2, 2)
    torch.testing.assert_close(torch.cat(outputs, 1).unflatten(-1, (2, 2)).var(0), expected, rtol=0.15, atol=0)


def test_numbers_have_the_moments_and_density_of_the_mixture():
    model, guide = build(Gaussian(0.4), outputs=2)
    x, y = torch.randn(5, 4, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
    result, means = predicted_and_outputs(model, guide, [(x[:3], y[:3]), (x[3:], y[3:])], num_samples=6)
    mean = means.mean(0)
    torch.testing.assert_close(result.mean, mean)
    assert torch.equal(result.predicted, result.mean)
    torch.testing.assert_close(result.variance, 0.4**2 + (means - mean).square().mean(0), rtol=1e-6, atol=0)
    densities = (-0.5 * ((y - means) / 0.4) ** 2).exp() / (0.4 * math.sqrt(2 * math.pi))
    torch.testing.assert_close(result.log_prob(y), densities.prod(-1).mean(0).log(), rtol=1e-5, atol=1e-6)


def test_binary_labels_have_the_mean_of_their_probabilities_and_a_joint_density():
    model, guide = build(Bernoulli())
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randint(2, (4, 3)).to(F64)
    result, logits = predicted_and_outputs(model, guide, x, num_samples=5)
    p = logits.sigmoid()
    torch.testing.assert_close(result.mean, p.mean(0))
    torch.testing.assert_close(result.variance, p.mean(0) * (1 - p.mean(0)))
    torch.testing.assert_close(result.log_prob(y), torch.where(y == 1, p, 1 - p).prod(-1).mean(0).log())
    assert torch.equal(result.predicted, (p.mean(0) > 0.5).long())
    torch.testing.assert_close(result.confidence, 0.5 + (p.mean(0) - 0.5).abs())


@pytest.mark.parametrize("attention", [KEPSVGPAttention.partial(rank=2), SoftmaxAttention])
def test_labels_of_tokens_count_jointly_and_padding_nothing(attention):
    model, guide = build(TokenCategorical(), pool=False, attention=attention)
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randint(3, (4, 5))
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    batches = [(x[:3], y[:3], mask[:3]), (x[3:], y[3:], mask[3:])]
    result, logits = predicted_and_outputs(model, guide, batches, num_samples=6)
    probs = logits.softmax(-1)
    torch.testing.assert_close(result.probs[mask], probs.mean(0)[mask])
    of_labels = probs.gather(-1, y.expand(6, 4, 5).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(result.log_prob(y), torch.where(mask, of_labels, 1.0).prod(-1).mean(0).log())
    assert torch.equal(result.log_prob(y), result.log_prob(torch.where(mask, y, -100)))


def test_averages_over_many_samples_keep_the_digits_of_single_precision():
    """One after another, 10⁵ terms in float32 would lose four of seven digits."""
    number, device = 100_000, torch.device("cpu")
    logits = 0.1 * torch.randn(number, 2, 3) + torch.tensor([3.0, 0.0, 1.0])
    result = summarise(dist.Categorical(logits=logits), None, device, num_samples=number, keep_draws=False)
    probs = logits.double().softmax(-1)
    torch.testing.assert_close(result.probs.double(), probs.mean(0), rtol=0, atol=1e-6)
    entropy = torch.special.entr(probs).sum(-1).mean(0)
    torch.testing.assert_close(result.expected_entropy.double(), entropy, rtol=0, atol=1e-6)
    loc, y = 100 + torch.randn(number, 2, 1), torch.tensor([[100.0], [102.0]])
    law = dist.Normal(loc, 1.0).to_event(1)
    result = summarise(law, None, device, num_samples=number, keep_draws=False)
    torch.testing.assert_close(result.mean.double(), loc.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.variance.double(), 1 + loc.double().var(0, correction=0), rtol=1e-5, atol=0)
    density = torch.distributions.Normal(loc.double(), 1.0).log_prob(y.double()).exp().mean(0)[:, 0]
    torch.testing.assert_close(result.log_prob(y).double(), density.log(), rtol=0, atol=1e-5)


def test_stored_probabilities_have_finite_logs_and_no_information():
    stored = Prediction(probs=torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    expected = [[0.0, math.log(torch.finfo(torch.float32).tiny)], [math.log(0.25), math.log(0.75)]]
    torch.testing.assert_close(stored.log_probs, torch.tensor(expected))
    assert stored.log_prob(torch.tensor([1, 1])).tolist() == pytest.approx([expected[0][1], expected[1][1]])
    assert stored.mutual_information is None
