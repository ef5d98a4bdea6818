"""The posterior predictive against the network run by hand at every draw and example."""

import math

import pyro.distributions as dist
import pytest
import torch
from float64 import randn64
from known_predictives import F64, assert_classes_of, build, predicted_and_outputs
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.inference import Prediction
from probattn.inference.prediction.aggregate import summarise
from probattn.models.likelihoods import Bernoulli, Gaussian

KEP = KEPSVGPAttention.partial(rank=2)


@pytest.mark.parametrize(("num_samples", "batch"), [(1, 4), (4, 4), (7, 1)])
@pytest.mark.parametrize("has_guide", [True, False])
@pytest.mark.parametrize("attention", [KEP, SoftmaxAttention])
def test_classes_by_hand(attention, has_guide, num_samples, batch):
    """Also as many draws as examples, which must not be paired; without a guide, draws from the
    prior."""
    model, guide = build(attention=attention)
    with torch.no_grad():
        model.network.head.weight.mul_(10)
    x, y = randn64(batch, 5, 3), torch.arange(batch) % 3
    result, logits = predicted_and_outputs(
        model, guide if has_guide else None, x, num_samples=num_samples
    )
    assert_classes_of(result, logits)
    assert_close(result.draws, logits.softmax(-1))
    assert_close(result.log_prob(y), result.probs[torch.arange(batch), y].log())
    assert_close(result.confidence, result.probs.amax(-1))
    assert torch.equal(result.predicted, result.probs.argmax(-1))
    assert (result.mutual_information > 1e-6).all() == (num_samples > 1 and attention is KEP)


def test_numbers_have_the_moments_and_density_of_the_mixture():
    model, guide = build(Gaussian(0.4), outputs=2)
    x, y = randn64(5, 4, 3), randn64(5, 2)
    result, means = predicted_and_outputs(
        model, guide, [(x[:3], y[:3]), (x[3:], y[3:])], num_samples=6
    )
    mean = means.mean(0)
    assert_close(result.mean, mean)
    assert torch.equal(result.predicted, result.mean)
    assert_close(result.variance, 0.4**2 + (means - mean).square().mean(0), rtol=1e-6, atol=0)
    densities = (-0.5 * ((y - means) / 0.4) ** 2).exp() / (0.4 * math.sqrt(2 * math.pi))
    assert_close(result.log_prob(y), densities.prod(-1).mean(0).log(), rtol=1e-5, atol=1e-6)


def test_binary_labels_have_the_mean_of_their_probabilities_and_a_joint_density():
    model, guide = build(Bernoulli())
    x, y = randn64(4, 5, 3), torch.randint(2, (4, 3)).to(F64)
    result, logits = predicted_and_outputs(model, guide, x, num_samples=5)
    p = logits.sigmoid()
    assert_close(result.mean, p.mean(0))
    assert_close(result.variance, p.mean(0) * (1 - p.mean(0)))
    assert_close(result.log_prob(y), torch.where(y == 1, p, 1 - p).prod(-1).mean(0).log())
    assert torch.equal(result.predicted, (p.mean(0) > 0.5).long())
    assert_close(result.confidence, 0.5 + (p.mean(0) - 0.5).abs())


def test_averages_over_many_samples_keep_the_digits_of_single_precision():
    """One after another, 10⁵ terms in float32 would lose four of seven digits."""
    number, device = 100_000, torch.device("cpu")
    logits = 0.1 * torch.randn(number, 2, 3) + torch.tensor([3.0, 0.0, 1.0])
    result = summarise(
        dist.Categorical(logits=logits), None, device, num_samples=number, keep_draws=False
    )
    probs = logits.double().softmax(-1)
    assert_close(result.probs.double(), probs.mean(0), rtol=0, atol=1e-6)
    entropy = torch.special.entr(probs).sum(-1).mean(0)
    assert_close(result.expected_entropy.double(), entropy, rtol=0, atol=1e-6)


def test_stored_probabilities_have_finite_logs_and_no_information():
    stored = Prediction(probs=torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    expected = [[0.0, math.log(torch.finfo(torch.float32).tiny)], [math.log(0.25), math.log(0.75)]]
    assert_close(stored.log_probs, torch.tensor(expected))
    assert stored.log_prob(torch.tensor([1, 1])).tolist() == pytest.approx(
        [expected[0][1], expected[1][1]]
    )
    assert stored.mutual_information is None
