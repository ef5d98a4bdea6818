"""Latent draws and replicated labels against the network run by hand at those very draws."""

import pyro.poutine as poutine
import pytest
import torch
from float64 import randn64
from known_predictives import build
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention
from probattn.inference import materialise
from probattn.inference.diagnostics.predictive_check import posterior_draws, replicate
from probattn.models.likelihoods import Gaussian, TokenCategorical

KEP = KEPSVGPAttention.partial(rank=2)
SHAPES = {f"network.layers.{i}.u": (3, 2, 2, 2) for i in (0, 1)}


def widened(likelihood=None, *, gain=1.0, **options):
    """A model whose draws differ by as much as its outputs do."""
    model, guide = build(likelihood, **options)
    with torch.no_grad():
        model.network.head.weight.mul_(gain)
        for name, parameter in guide.named_parameters():
            if name.endswith("raw_tril"):
                parameter.copy_(1.5 * torch.eye(parameter.shape[-1]).expand_as(parameter))
    return model, guide


def likelihood_at(model, latents, s, x, mask=None):
    """The likelihood of the examples at row s of the draws."""
    program = poutine.condition(
        model.eval(), data={name: draws[s] for name, draws in latents.items()}
    )
    with torch.no_grad():
        return poutine.trace(program).get_trace(x, None, mask).nodes["y"]["fn"]


@pytest.mark.parametrize("attention", [KEP, SoftmaxAttention])
@pytest.mark.parametrize("from_prior", [False, True])
def test_prediction_and_likelihood_are_those_of_the_recorded_draws(attention, from_prior):
    model, guide = widened(attention=attention)
    x, y = randn64(5, 5, 3), torch.tensor([0, 2, 1, 1, 0])
    made = replicate(
        model, None if from_prior else guide, [(x[:3], y[:3]), (x[3:], y[3:])], num_samples=3
    )
    assert {name: draws.shape for name, draws in made.latents.items()} == (
        SHAPES if attention is KEP else {}
    )
    likelihoods = [likelihood_at(model, made.latents, s, x) for s in range(3)]
    assert_close(made.log_likelihood, torch.stack([law.log_prob(y) for law in likelihoods]))
    assert_close(made.prediction.probs, sum(law.probs for law in likelihoods) / 3)
    assert (attention is KEP) != torch.allclose(made.log_likelihood[0], made.log_likelihood[1])
    assert torch.equal(made.labels, y)


def test_neither_local_sites_nor_what_an_auto_guide_draws_for_itself_are_recorded():
    model, guide = build(attention=SGPAttention.partial(inducing=2))
    drawn = posterior_draws(model, guide, randn64(5, 5, 3), num_samples=3)
    assert {name: draws.shape for name, draws in drawn.items()} == SHAPES
    model, x, y = build()[0].float(), torch.randn(4, 5, 3), torch.zeros(4, dtype=torch.long)
    guide = AutoMultivariateNormal(model)
    materialise(guide, (x, y))
    made = replicate(model, guide, [(x, y)], num_samples=3)
    assert {name: draws.shape for name, draws in made.latents.items()} == SHAPES
    assert_close(made.log_likelihood[2], likelihood_at(model, made.latents, 2, x).log_prob(y))


@pytest.mark.parametrize("attention", [KEP, SoftmaxAttention])
def test_labels_have_the_probabilities_of_the_prediction(attention):
    """Each draw has labels of its own, also where nothing above them is drawn."""
    model, guide = widened(attention=attention, gain=2.0)
    x, y = randn64(2, 5, 3), torch.zeros(2, dtype=torch.long)
    made = replicate(model, guide, [(x, y)], num_samples=4000)
    shares = nn.functional.one_hot(made.replicated_labels, 3).double().mean(0)
    probs = made.prediction.probs
    assert ((shares - probs).abs() < 4.5 * (probs * (1 - probs) / 4000).sqrt()).all()


def test_numbers_scatter_around_the_mean_of_their_draw_with_the_noise_of_the_likelihood():
    model, guide = widened(Gaussian(0.3), outputs=2, gain=30.0)
    x, y = randn64(5, 5, 3), randn64(5, 2)
    made = replicate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_samples=60)
    means = torch.stack([likelihood_at(model, made.latents, s, x).mean for s in range(60)])
    assert means.std(0).max() > 1
    noise = (made.replicated_labels - means) / 0.3
    assert abs(noise.mean()) < 5 / noise.numel() ** 0.5
    assert abs(noise.std() - 1) < 5 / (2 * noise.numel()) ** 0.5
    by_hand = (
        -0.5 * ((y - means) / 0.3) ** 2 - torch.tensor(0.3 * (2 * torch.pi) ** 0.5).log()
    ).sum(-1)
    assert_close(made.log_likelihood, by_hand, rtol=1e-5, atol=1e-5)


def test_padded_tokens_have_the_label_0_and_count_nothing():
    model, guide = widened(TokenCategorical(), pool=False, gain=1e6)
    x, y = randn64(4, 5, 3), torch.full((4, 5), 2)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [5]])
    batches = [(x[:2], y[:2], mask[:2]), (x[2:3], y[2:3], mask[2:3]), (x[3:], y[3:])]
    made = replicate(model, guide, batches, num_samples=150)  # in chunks of one example
    assert (made.replicated_labels[:, ~mask] == 0).all()
    assert torch.equal(made.labels, y.where(mask, 0))
    for s in range(20):
        likelihood = likelihood_at(model, made.latents, s, x, mask)
        best = likelihood.base_dist.base_dist.probs.argmax(-1)
        assert torch.equal(made.replicated_labels[s][mask], best[mask])
        assert_close(made.log_likelihood[s], likelihood.log_prob(y))
