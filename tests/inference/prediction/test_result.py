"""Entropies, moments and log densities of predictions, against hand computation."""

import math

import pyro.distributions as dist
import pytest
import torch
from known_predictives import F64, build, outputs_by_hand

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.inference import Prediction, predict
from probattn.inference.prediction import latents
from probattn.inference.prediction.aggregate import summarise
from probattn.models.likelihoods import Bernoulli, Gaussian, TokenCategorical


@pytest.fixture
def recorded(monkeypatch):
    """The trace of the latent sites of every predict."""
    traces, original = [], latents.global_part

    def record(*args):
        traces.append(original(*args))
        return traces[-1]

    monkeypatch.setattr(latents, "global_part", record)
    return traces


def test_entropies_and_mutual_information_by_hand(recorded):
    model, guide = build()
    with torch.no_grad():
        model.network.head.weight.mul_(10)
    x = torch.randn(4, 5, 3, dtype=F64)
    result = predict(model, guide, x, num_samples=6)
    probs = outputs_by_hand(model, recorded[0], x, 6).softmax(-1)
    for i in range(4):
        mean = [sum(probs[s, i, c].item() for s in range(6)) / 6 for c in range(3)]
        entropy = -sum(p * math.log(p) for p in mean)
        each = [-sum(p * math.log(p) for p in probs[s, i].tolist()) for s in range(6)]
        assert math.isclose(result.entropy[i], entropy, rel_tol=1e-9)
        assert math.isclose(result.expected_entropy[i], sum(each) / 6, rel_tol=1e-9)
        assert math.isclose(result.mutual_information[i], entropy - sum(each) / 6, rel_tol=1e-6)
    assert (result.mutual_information > 1e-5).all()


def test_information_of_certain_and_of_disputed_draws():
    certain = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])
    disputed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    for probs, entropy in ((certain, 0.0), (disputed, math.log(2))):
        result = Prediction(probs=probs.mean(0), expected_entropy=torch.special.entr(probs).sum(-1).mean(0))
        assert math.isclose(result.entropy.item(), entropy, abs_tol=1e-7)
        assert math.isclose(result.mutual_information.item(), entropy, abs_tol=1e-7)


def test_log_prob_is_the_log_of_the_mean_probability(recorded):
    model, guide = build()
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.tensor([0, 2, 1, 1])
    result = predict(model, guide, x, num_samples=5)
    probs = outputs_by_hand(model, recorded[0], x, 5).softmax(-1)
    expected = [math.log(sum(probs[s, i, y[i]].item() for s in range(5)) / 5) for i in range(4)]
    torch.testing.assert_close(result.log_prob(y), torch.tensor(expected, dtype=F64))
    torch.testing.assert_close(result.log_prob(y.int()), torch.tensor(expected, dtype=F64))
    for wrong, message in (
        (y + 0.7, r"integer class indices, got torch.float32"),
        (y + 1, r"in 0\.\.2 for 3 classes, got 1\.\.3"),
        (y[:3], r"shape \(4,\), got \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            result.log_prob(wrong)


def test_regression_moments_and_log_prob_by_hand(recorded):
    model, guide = build(Gaussian(0.4), outputs=2)
    x, y = torch.randn(5, 4, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
    result = predict(model, guide, [(x[:3], y[:3]), (x[3:], y[3:])], num_samples=6)
    means = outputs_by_hand(model, recorded[0], x, 6)
    mean = means.mean(0)
    torch.testing.assert_close(result.mean, mean)
    total = 0.4**2 + (means - mean).square().mean(0)
    torch.testing.assert_close(result.variance, total, rtol=1e-6, atol=0)
    for i in range(5):
        each = [
            math.prod(
                math.exp(-0.5 * ((y[i, t] - means[s, i, t]) / 0.4) ** 2) / (0.4 * math.sqrt(2 * math.pi))
                for t in range(2)
            )
            for s in range(6)
        ]
        assert math.isclose(result.log_prob(y)[i], math.log(sum(each) / 6), rel_tol=1e-5)
    assert result.probs is None


def test_regression_labels_that_would_broadcast_are_refused():
    model, guide = build(Gaussian(), outputs=1)
    x = torch.randn(5, 4, 3, dtype=F64)
    result = predict(model, guide, [x[:3], x[3:]])
    assert result.log_prob(torch.zeros(5, 1)).shape == (5,)
    for wrong in (torch.zeros(5), torch.zeros(4, 1), torch.zeros(5, 5)):
        with pytest.raises(ValueError, match=r"labels of shape \(5, 1\)"):
            result.log_prob(wrong)


def test_several_labels_have_the_mean_of_their_probabilities(recorded):
    model, guide = build(Bernoulli())
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randint(2, (4, 3)).to(F64)
    result = predict(model, guide, x, num_samples=5)
    p = outputs_by_hand(model, recorded[0], x, 5).sigmoid()
    torch.testing.assert_close(result.mean, p.mean(0))
    torch.testing.assert_close(result.variance, p.mean(0) * (1 - p.mean(0)))
    joint = torch.where(y == 1, p, 1 - p).prod(-1).mean(0).log()
    torch.testing.assert_close(result.log_prob(y), joint)


@pytest.mark.parametrize("attention", [KEPSVGPAttention.partial(rank=2), SoftmaxAttention])
def test_labels_of_tokens_count_jointly_and_padding_nothing(recorded, attention):
    model, guide = build(TokenCategorical(), pool=False, attention=attention)
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randint(3, (4, 5))
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    result = predict(model, guide, [(x[:3], y[:3], mask[:3]), (x[3:], y[3:], mask[3:])], num_samples=6)
    if attention is SoftmaxAttention:
        model.eval()
        probs = model.network(x, mask).softmax(-1).expand(6, 4, 5, 3)
    else:
        probs = outputs_by_hand(model, recorded[0], x, 6, mask).softmax(-1)
    torch.testing.assert_close(result.probs[mask], probs.mean(0)[mask])
    picked = probs.gather(-1, y.expand(6, 4, 5).unsqueeze(-1)).squeeze(-1)
    joint = torch.where(mask, picked, 1.0).prod(-1).mean(0).log()
    torch.testing.assert_close(result.log_prob(y), joint)
    torch.testing.assert_close(result.log_prob(torch.where(mask, y, 0)), joint)


def test_stored_probabilities_of_tokens_have_densities_per_token():
    stored = Prediction(probs=torch.full((2, 3, 2), 0.5), mask=torch.ones(2, 3, dtype=torch.bool))
    labels = torch.zeros(2, 3, dtype=torch.long)
    torch.testing.assert_close(stored.tokens().log_prob(labels.flatten()), torch.full((6,), 0.5).log())


def test_averages_over_many_samples_keep_the_digits_of_single_precision():
    """One after another, 10⁵ terms in float32 would lose four of seven digits."""
    torch.manual_seed(0)
    number, device = 100_000, torch.device("cpu")
    logits = 0.1 * torch.randn(number, 2, 3) + torch.tensor([3.0, 0.0, 1.0])
    found = summarise(dist.Categorical(logits=logits), None, device, num_samples=number, keep_draws=False)
    probs = logits.double().softmax(-1)
    torch.testing.assert_close(found.probs.double(), probs.mean(0), rtol=0, atol=1e-6)
    expected = torch.special.entr(probs).sum(-1).mean(0)
    torch.testing.assert_close(found.expected_entropy.double(), expected, rtol=0, atol=1e-6)
    loc, y = 100 + torch.randn(number, 2, 1), torch.tensor([[100.0], [102.0]])
    found = summarise(dist.Normal(loc, 1.0).to_event(1), None, device, num_samples=number, keep_draws=False)
    torch.testing.assert_close(found.mean.double(), loc.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.variance.double(), 1 + loc.double().var(0, correction=0), rtol=1e-5, atol=0)
    density = torch.distributions.Normal(loc.double(), 1.0).log_prob(y.double()).exp().mean(0)[:, 0]
    torch.testing.assert_close(found.log_prob(y).double(), density.log(), rtol=0, atol=1e-5)
