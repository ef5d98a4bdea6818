"""The objective of a supervised model, taken apart by hand (KEP-SVGP paper, eq. 20)."""

import math

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from float64 import F64, randn64
from sampling import under
from torch import distributions as dist
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from probattn import KEPSVGPAttention, draws, guides
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical
from probattn.weights import kl_weight

N, BATCH, TOKENS = 12, 4, 5
ELBOS = pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO])


class Network(nn.Module):
    def __init__(self, *, pool=True, depth=1):
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layers = nn.ModuleList([KEPSVGPAttention(4, 2, rank=2, eta=0.5) for _ in range(depth)])
        self.head, self.pool = nn.Linear(4, 3), pool

    def forward(self, x, mask=None):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x.mean(-2) if self.pool else x)


def build(likelihood=None, **options):
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=N).double()
    for layer in model.network.layers:
        layer.log_scale.data.add_(torch.randn_like(layer.log_scale) / 3)
    return model, guides.for_model(model)


def data(batch=BATCH):
    return randn64(batch, TOKENS, 3), torch.randint(3, (batch,))


def outputs_at(network, x, u):
    """Outputs and KSVD penalty of one example of a network of one layer, from the formulae."""
    layer, x = network.layers[0], network.embed(x)
    e, r, w_e, w_r = (t[0] for t in layer.scores(x.unsqueeze(0)))
    weighted = torch.einsum("hns,hs,hds->nhd", e + r, 1 / layer.scale, u)
    variances = 0.5 * sum(
        torch.einsum("hns,hs,hns->h", score, 1 / layer.scale, score) for score in (e, r)
    )
    penalty = 0.5 * ((torch.einsum("hds,hds->h", w_e, w_r) - variances) / TOKENS).square().mean()
    return network.head((x + layer.out(weighted.flatten(1))).mean(0)), penalty


def kl_of(elbo, model, guide, u):
    """KL of the layer's site: closed form, or at one draw."""
    scale = model.network.layers[0].log_scale.exp().unsqueeze(1)
    q = guide.network.layers.get_submodule("0").u
    posterior = MultivariateNormal(scale * q.loc, scale_tril=scale.unsqueeze(-1) * q.scale_tril)
    prior = MultivariateNormal(torch.zeros_like(q.loc), scale_tril=scale.diag_embed())
    if elbo is TraceMeanField_ELBO:
        return kl_divergence(posterior, prior).sum()
    return (posterior.log_prob(u) - prior.log_prob(u)).sum()


def drawn(elbo, site="network.layers.0.u"):
    return elbo.traces[1].nodes[site]["value"].detach()


@ELBOS
@pytest.mark.parametrize("batch", [BATCH, 1])
@pytest.mark.parametrize("weight", [1.0, 0.25])
@pytest.mark.parametrize("numbers", [(), (3,), ("example",), ("example", 2)])
def test_the_loss_is_the_mean_over_draws_of_scaled_likelihood_and_penalty_plus_the_kl_once(
    elbo, batch, weight, numbers
):
    model, guide = build()
    x, y = data(batch)
    objective = elbo()
    with under(kl_weight(weight), *map(draws, numbers)):
        loss = objective(model, guide)(x, y)
    u = drawn(objective)
    assert (
        u.unique().numel()
        == u.numel()
        == math.prod({"example": batch}.get(n, n) for n in numbers) * 8
    )
    sets = u.reshape(-1, batch if "example" in numbers else 1, 2, 2, 2).expand(-1, batch, 2, 2, 2)
    expected = 0.0
    for u_of_examples in sets:
        for b in range(batch):
            logits, penalty = outputs_at(model.network, x[b], u_of_examples[b])
            expected = expected + N / batch * (penalty - logits.log_softmax(-1)[y[b]]) / len(sets)
            expected = expected + weight * kl_of(
                elbo, model, guide, u_of_examples[b]
            ) / batch / len(sets)
    torch.testing.assert_close(loss, expected)


@ELBOS
def test_two_layers_use_the_same_draw_of_each_example_throughout(elbo):
    """The penalty of the second layer depends on the draw of the first: loop over examples, one
    shared draw each."""
    model, guide = build(depth=2)
    x, y = data()
    objective = elbo()
    with draws("example"):
        objective(model, guide)(x, y)
    nll = penalty = 0.0
    for b in range(BATCH):
        fixed = {
            site: drawn(objective, site)[b] for site in ("network.layers.0.u", "network.layers.1.u")
        }
        trace = poutine.trace(poutine.condition(model.network, data=fixed)).get_trace(x[b : b + 1])
        factors = [
            node["fn"].log_factor.sum().item()
            for name, node in trace.nodes.items()
            if name.endswith("ksvd")
        ]
        assert len(factors) == 2
        penalty -= N / BATCH * sum(factors)
        nll -= N / BATCH * trace.nodes["_RETURN"]["value"].log_softmax(-1)[0, y[b]].item()
    terms = objective.terms()
    assert terms["nll"] == pytest.approx(nll, rel=1e-9)
    both = terms["penalty/network.layers.0.ksvd"] + terms["penalty/network.layers.1.ksvd"]
    assert both == pytest.approx(penalty, rel=1e-9)


def sampled(model, guide, x, y, rows, *, number=100):
    """Losses ``(number,)`` and their gradients of a mean of the guide, with one draw, or one for
    each example."""
    module, losses, gradients = TraceMeanField_ELBO()(model, guide), [], []
    for _ in range(number):
        with draws(rows):
            loss = module(x, y)
        losses.append(loss.detach())
        gradient = torch.autograd.grad(loss, guide.network.layers.get_submodule("0").u.loc)[0]
        gradients.append(gradient.flatten())
    return torch.stack(losses), torch.stack(gradients)


def assert_same_mean(one, other):
    error = ((one.var(0) + other.var(0)) / len(one)).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() <= 5 * error).all()


def test_draws_per_example_divide_the_gradients_variance_by_the_number_of_equal_examples():
    model, guide = build()
    x, y = (rows[:1].expand_as(rows) for rows in data())
    (_, shared), (_, own) = (sampled(model, guide, x, y, rows) for rows in (1, "example"))
    shared, own = ((gradients - gradients.mean(0)).square().sum(-1) for gradients in (shared, own))
    assert_same_mean(shared / BATCH, own)


LIKELIHOODS = [  # likelihood, labels, their log densities given the outputs
    (
        Bernoulli(),
        torch.randint(2, (BATCH, 3)).to(F64),
        lambda f, y: dist.Bernoulli(logits=f).log_prob(y),
    ),
    (Gaussian(0.5), randn64(BATCH, 3), lambda f, y: dist.Normal(f, 0.5).log_prob(y)),
    (
        TokenCategorical(),
        torch.randint(3, (BATCH, TOKENS)),
        lambda f, y: dist.Categorical(logits=f).log_prob(y),
    ),
]


@pytest.mark.parametrize(("likelihood", "labels", "by_hand"), LIKELIHOODS)
def test_other_likelihoods_are_summed_over_an_example_without_its_padding(
    likelihood, labels, by_hand
):
    by_token = isinstance(likelihood, TokenCategorical)
    model, guide = build(likelihood, pool=not by_token)
    mask = torch.arange(TOKENS) < torch.tensor([[5], [2], [4], [1]])
    real = data()[0].where(
        mask.unsqueeze(-1), 0.0
    )  # as the model sets it: this network pools over padding, too
    objective = Trace_ELBO()
    with draws("example"):
        objective(model, guide)(real.where(mask.unsqueeze(-1), 7.0), labels, mask)
    total = 0.0
    for b in range(BATCH):
        fixed = {"network.layers.0.u": drawn(objective)[b]}
        outputs = poutine.condition(model.network, data=fixed)(real[b : b + 1], mask[b : b + 1])[0]
        log_probs = by_hand(outputs, labels[b])
        total -= N / BATCH * (log_probs[mask[b]] if by_token else log_probs).sum().item()
    assert objective.terms()["nll"] == pytest.approx(total, rel=1e-6)
