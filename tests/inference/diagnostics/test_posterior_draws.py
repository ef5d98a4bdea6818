"""Latent draws and replicated labels against the network run by hand at those very draws."""

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention, guides
from probattn.inference import materialise, predict
from probattn.inference.diagnostics.posterior_draws import posterior_draws, record, replicate
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical, Gaussian, TokenCategorical

F64 = torch.float64


class Network(PyroModule):
    def __init__(self, attention, *, pool=True, outputs=3, gain=1.0):
        super().__init__()
        self.layers = nn.ModuleList([attention(4, 2), attention(4, 2)])
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, outputs)
        self.pool, self.gain = pool, gain

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = x + self.dropout(layer(x, mask))
        return self.gain * self.head(x.mean(-2) if self.pool else x)


KEP = KEPSVGPAttention.partial(rank=2)


def build(attention=KEP, likelihood=None, **options):
    model = Supervised(Network(attention, **options), likelihood or Categorical(), num_data=9).double()
    with torch.no_grad():
        for layer in model.network.layers:
            layer.out.weight.mul_(4)
    return model, guides.for_model(model)


def widen(guide, scale=1.5):
    """Lets draws differ by as much as their outputs do."""
    with torch.no_grad():
        for name, parameter in guide.named_parameters():
            if name.endswith("raw_tril"):
                parameter.copy_(torch.eye(parameter.shape[-1]).expand_as(parameter) * scale)


def likelihood_at(model, latents, s, x, mask=None):
    """The likelihood of the examples at row s of the draws."""
    model.eval()
    program = poutine.condition(model, data={name: draws[s] for name, draws in latents.items()})
    with torch.no_grad():
        return poutine.trace(program).get_trace(x, None, mask).nodes["y"]["fn"]


@pytest.mark.parametrize(("attention", "sites"), [(KEP, 2), (SoftmaxAttention, 0)])
@pytest.mark.parametrize("from_prior", [False, True])
def test_prediction_and_likelihood_are_those_of_the_recorded_draws(attention, sites, from_prior):
    """Every row of the draws, put back into the model, gives that row of the probabilities and of the likelihood."""
    model, guide = build(attention)
    x, y = torch.randn(5, 5, 4, dtype=F64), torch.tensor([0, 2, 1, 1, 0])
    made = replicate(model, None if from_prior else guide, [(x[:3], y[:3]), (x[3:], y[3:])], num_samples=3)
    shapes = {name: draws.shape for name, draws in made.latents.items()}
    assert shapes == {f"network.layers.{i}.u": (3, 2, 2, 2) for i in range(sites)}
    probs = torch.zeros(5, 3, dtype=F64)
    for s in range(3):
        likelihood = likelihood_at(model, made.latents, s, x)
        probs += likelihood.probs / 3
        torch.testing.assert_close(made.log_likelihood[s], likelihood.log_prob(y))
    torch.testing.assert_close(made.prediction.probs, probs)
    assert not sites or not torch.allclose(made.log_likelihood[0], made.log_likelihood[1])
    assert torch.equal(made.labels, y)


def test_local_sites_are_not_recorded():
    model, guide = build(SGPAttention.partial(inducing=2))
    drawn = posterior_draws(model, guide, torch.randn(5, 5, 4, dtype=F64), num_samples=3)
    assert {name: draws.shape for name, draws in drawn.items()} == {
        f"network.layers.{i}.u": (3, 2, 2, 2) for i in (0, 1)
    }


@pytest.mark.parametrize("attention", [KEP, SoftmaxAttention])
def test_labels_have_the_probabilities_of_the_prediction(attention):
    """Each draw has labels of its own, also where nothing above them is drawn."""
    model, guide = build(attention, gain=2.0)
    x, y = torch.randn(2, 5, 4, dtype=F64), torch.zeros(2, dtype=torch.long)
    made = replicate(model, guide, [(x, y)], num_samples=4000)
    shares = torch.nn.functional.one_hot(made.replicated_labels, 3).double().mean(0)
    probs = made.prediction.probs
    assert ((shares - probs).abs() < 4.5 * (probs * (1 - probs) / 4000).sqrt()).all()


def test_numbers_scatter_around_the_mean_of_their_draw_with_the_noise_of_the_likelihood():
    model, guide = build(likelihood=Gaussian(0.3), outputs=2, gain=30.0)
    widen(guide)
    x, y = torch.randn(5, 5, 4, dtype=F64), torch.randn(5, 2, dtype=F64)
    made = replicate(model, guide, [(x[:4], y[:4]), (x[4:], y[4:])], num_samples=60)
    means = torch.stack([likelihood_at(model, made.latents, s, x).mean for s in range(60)])
    assert means.std(0).min() > 1
    noise = (made.replicated_labels - means) / 0.3
    assert abs(noise.mean()) < 4 / noise.numel() ** 0.5
    assert abs(noise.std() - 1) < 4 / (2 * noise.numel()) ** 0.5
    by_hand = (-0.5 * ((y - means) / 0.3) ** 2 - torch.tensor(0.3 * (2 * torch.pi) ** 0.5).log()).sum(-1)
    torch.testing.assert_close(made.log_likelihood, by_hand, rtol=1e-5, atol=1e-5)


def test_padded_tokens_have_the_label_0_and_count_nothing():
    model, guide = build(likelihood=TokenCategorical(), pool=False, gain=1e6)
    widen(guide)
    x, y = torch.randn(4, 5, 4, dtype=F64), torch.full((4, 5), 2)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [5]])
    batches = [(x[:2], y[:2], mask[:2]), (x[2:3], y[2:3], mask[2:3]), (x[3:], y[3:])]
    made = replicate(model, guide, batches, num_samples=150)  # in pieces of one example
    assert torch.equal(made.prediction.mask, mask)
    assert (made.replicated_labels[:, ~mask] == 0).all()
    assert torch.equal(made.labels, y.where(mask, 0))
    for s in range(40):
        likelihood = likelihood_at(model, made.latents, s, x, mask)
        best = likelihood.base_dist.base_dist.probs.argmax(-1)
        assert torch.equal(made.replicated_labels[s][mask], best[mask])
        torch.testing.assert_close(made.log_likelihood[s], likelihood.log_prob(y))


def test_what_an_auto_guide_draws_for_itself_alone_is_no_latent_site():
    model, _ = build()
    model.float()
    x, y = torch.randn(4, 5, 4), torch.zeros(4, dtype=torch.long)
    guide = AutoMultivariateNormal(model)
    materialise(guide, (x, y))
    made = replicate(model, guide, [(x, y)], num_samples=3)
    assert {name: draws.shape for name, draws in made.latents.items()} == {
        f"network.layers.{i}.u": (3, 2, 2, 2) for i in (0, 1)
    }
    torch.testing.assert_close(made.log_likelihood[2], likelihood_at(model, made.latents, 2, x).log_prob(y))


def test_a_users_own_global_site_is_drawn_once_for_all_batches():
    class Weighted(PyroModule):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)
            self.weight = PyroSample(dist.Normal(0.0, 1.0).expand([3]).to_event(1))

        def forward(self, x):
            return self.inner(x.mean(-2)) * self.weight

    model = Supervised(Weighted(), Categorical(), num_data=9)
    x = torch.randn(4, 5, 4)
    torch.manual_seed(0)
    with record(3) as drawn:
        result = predict(model, None, [x[:2], x[2:]], num_samples=3, keep_draws=True)
    weight = drawn.latents["network.weight"]
    assert weight.shape == (3, 3)
    logits = model.network.inner(x.mean(-2)) * weight.unsqueeze(1)
    torch.testing.assert_close(result.draws, logits.softmax(-1).detach())


def test_labels_of_another_shape_are_refused():
    model, guide = build()
    x, y = torch.randn(3, 5, 4, dtype=F64), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"labels of shape \(3,\), got \(3, 1\)"):
        replicate(model, guide, [(x, y[:, None])], num_samples=2)
    for labels in (y[:2], torch.zeros(4, dtype=torch.long)):
        with pytest.raises(ValueError, match=rf"has 3 inputs and labels of shape \({len(labels)},\)"):
            replicate(model, guide, [(x, labels)], num_samples=2)
