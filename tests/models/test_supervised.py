"""The objective of a supervised model, taken apart by hand (KEP-SVGP paper, eq. 20)."""

import math
import statistics

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

from probattn import KEPSVGPAttention, draws, guides
from probattn.models import Classifier, Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical
from probattn.weights import kl_weight

F64 = torch.float64
N, BATCH, TOKENS = 12, 4, 5
ELBOS = pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO])


class Network(nn.Module):
    def __init__(self, outputs: int = 3, *, pool: bool = True, depth: int = 1) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layers = nn.ModuleList([KEPSVGPAttention(4, 2, rank=2, eta=0.5) for _ in range(depth)])
        self.head = nn.Linear(4, outputs)
        self.pool = pool

    def forward(self, x, mask=None):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x.mean(-2) if self.pool else x)


def build(likelihood=None, *, outputs=3, pool=True, depth=1, family="full"):
    model = Supervised(Network(outputs, pool=pool, depth=depth), likelihood or Categorical(), num_data=N).double()
    guide = guides.for_model(model, family)
    with torch.no_grad():
        for layer in model.network.layers:
            layer.log_scale.add_(torch.randn_like(layer.log_scale) / 3)
    return model, guide


def data(batch=BATCH):
    return torch.randn(batch, TOKENS, 3, dtype=F64), torch.randint(3, (batch,))


def outputs_at(network, x, u):
    """Outputs and KSVD penalty of one example of a network of one layer, from the formulae."""
    layer, x = network.layers[0], network.embed(x)
    e, r, w_e, w_r = (t[0] for t in layer.scores(x.unsqueeze(0)))
    lam = layer.log_scale.exp()
    heads, penalty = [], 0.0
    for h in range(2):
        heads.append((e[h] + r[h]) @ torch.diag(1 / lam[h]) @ u[h].T)
        inverse = torch.diag(1 / lam[h])
        j = -0.5 * (e[h] @ inverse @ e[h].T).trace() - 0.5 * (r[h] @ inverse @ r[h].T).trace()
        j = j + (w_e[h].T @ w_r[h]).trace()
        penalty = penalty + 0.5 * (j / TOKENS) ** 2 / 2
    x = x + layer.out(torch.cat(heads, dim=-1))
    return network.head(x.mean(0)), penalty


def kl_of(elbo, model, guide, u):
    """KL of the layer's site: closed form, or at one draw."""
    lam, q = model.network.layers[0].log_scale.exp(), guide.network.layers.get_submodule("0").u
    total = 0.0
    for h in range(2):
        for d in range(2):
            tril = lam[h].unsqueeze(-1) * q.scale_tril[h, d]
            posterior = torch.distributions.MultivariateNormal(lam[h] * q.loc[h, d], scale_tril=tril)
            prior = torch.distributions.MultivariateNormal(torch.zeros_like(lam[h]), scale_tril=torch.diag(lam[h]))
            if elbo is TraceMeanField_ELBO:
                total = total + torch.distributions.kl_divergence(posterior, prior)
            else:
                total = total + posterior.log_prob(u[h, d]) - prior.log_prob(u[h, d])
    return total


def drawn(elbo, site="network.layers.0.u"):
    return elbo.traces[1].nodes[site]["value"].detach()


@ELBOS
@pytest.mark.parametrize("batch", [BATCH, 1, 3])
def test_loss_with_a_shared_draw_by_hand(elbo, batch):
    model, guide = build()
    x, y = data(batch)
    elbo = elbo()
    loss = elbo(model, guide)(x, y)
    u = drawn(elbo)
    assert u.shape == (2, 2, 2)
    by_hand = kl_of(type(elbo), model, guide, u)
    for b in range(batch):
        logits, penalty = outputs_at(model.network, x[b], u)
        by_hand = by_hand + N / batch * (penalty - logits.log_softmax(-1)[y[b]])
    torch.testing.assert_close(loss, by_hand)


@ELBOS
@pytest.mark.parametrize("batch", [BATCH, 1, 3])
def test_loss_with_a_draw_per_example_by_hand(elbo, batch):
    model, guide = build()
    x, y = data(batch)
    elbo = elbo()
    with draws("example"):
        loss = elbo(model, guide)(x, y)
    u = drawn(elbo)
    assert u.shape == (batch, 2, 2, 2)
    assert batch == 1 or not torch.equal(u[0], u[1])
    by_hand = 0.0
    for b in range(batch):
        logits, penalty = outputs_at(model.network, x[b], u[b])
        by_hand = by_hand + N / batch * (penalty - logits.log_softmax(-1)[y[b]])
        by_hand = by_hand + kl_of(type(elbo), model, guide, u[b]) / batch
    torch.testing.assert_close(loss, by_hand)


@ELBOS
def test_loss_with_particles_per_example_averages_all_draws(elbo):
    model, guide = build()
    x, y = data()
    elbo = elbo()
    with draws("example"), draws(2):
        loss = elbo(model, guide)(x, y)
    u = drawn(elbo)
    assert u.shape == (2, BATCH, 2, 2, 2)
    by_hand = 0.0
    for s in range(2):
        for b in range(BATCH):
            logits, penalty = outputs_at(model.network, x[b], u[s, b])
            by_hand = by_hand + N / BATCH / 2 * (penalty - logits.log_softmax(-1)[y[b]])
            by_hand = by_hand + kl_of(type(elbo), model, guide, u[s, b]) / BATCH / 2
    torch.testing.assert_close(loss, by_hand)


@ELBOS
@pytest.mark.parametrize("number", ["example", 3, None])
@pytest.mark.parametrize("weight", [0.0, 0.25, 2.0])
def test_kl_weight_scales_the_kl_alone(elbo, number, weight):
    model, guide = build()
    x, y = data()
    values = []
    for w in (1.0, weight):
        torch.manual_seed(0)
        objective = elbo()
        with kl_weight(w), draws(number or 1):
            values.append(objective(model, guide)(x, y))
    torch.manual_seed(0)
    objective = elbo()
    with draws(number or 1):
        objective(model, guide)(x, y)
    u = drawn(objective).reshape(-1, 2, 2, 2)
    kl = torch.stack([kl_of(elbo, model, guide, each) for each in u]).mean()
    torch.testing.assert_close(values[1] - values[0], (weight - 1) * kl)


@ELBOS
def test_two_layers_use_the_same_draw_of_each_example_throughout(elbo):
    """The penalty of the second layer depends on the draw of the first: loop over examples, one shared draw each."""
    model, guide = build(depth=2)
    x, y = data()
    elbo = elbo()
    with draws("example"):
        elbo(model, guide)(x, y)
    sites = ["network.layers.0.u", "network.layers.1.u"]
    nll = penalty = 0.0
    for b in range(BATCH):
        fixed = {site: drawn(elbo, site)[b] for site in sites}
        trace = poutine.trace(poutine.condition(model.network, data=fixed)).get_trace(x[b : b + 1])
        factors = [node for name, node in trace.nodes.items() if name.endswith("ksvd")]
        assert len(factors) == 2
        penalty = penalty - N / BATCH * sum(f["fn"].log_factor.sum() for f in factors)
        nll = nll - N / BATCH * trace.nodes["_RETURN"]["value"].log_softmax(-1)[0, y[b]]
    terms = elbo.terms()
    assert math.isclose(terms["nll"], nll.item(), rel_tol=1e-9)
    both = terms["penalty/network.layers.0.ksvd"] + terms["penalty/network.layers.1.ksvd"]
    assert math.isclose(both, penalty.item(), rel_tol=1e-9)


def test_a_batch_is_an_unbiased_estimate_of_the_data_set():
    """Mean over all batches of the loss at one draw = the loss of the whole set, with an equal split."""
    model, guide = build()
    x, y = data(N)

    def loss(*batch):
        torch.manual_seed(3)
        return TraceMeanField_ELBO()(model, guide)(*batch)

    parts = [loss(x[start : start + 3], y[start : start + 3]) for start in range(0, N, 3)]
    torch.testing.assert_close(torch.stack(parts).mean(), loss(x, y))


def test_per_example_draws_keep_the_expected_loss_and_gradient_with_less_noise():
    model, guide = build()
    x, y = data()
    module = TraceMeanField_ELBO()(model, guide)
    parameter = guide.network.layers.get_submodule("0").u.loc

    def sample(example):
        losses, gradients = [], []
        for _ in range(200):
            if example:
                with draws("example"):
                    loss = module(x, y)
            else:
                loss = module(x, y)
            losses.append(loss.item())
            gradients.append(torch.autograd.grad(loss, parameter)[0].flatten())
        return losses, torch.stack(gradients)

    torch.manual_seed(1)
    (shared, shared_gradient), (own, own_gradient) = sample(False), sample(True)
    error = math.sqrt((statistics.variance(shared) + statistics.variance(own)) / 200)
    assert abs(statistics.mean(shared) - statistics.mean(own)) < 4 * error
    gradient_error = ((shared_gradient.var(0) + own_gradient.var(0)) / 200).sqrt()
    assert ((shared_gradient.mean(0) - own_gradient.mean(0)).abs() < 4.5 * gradient_error).all()
    assert own_gradient.var(0).sum() < 0.6 * shared_gradient.var(0).sum()


@pytest.mark.parametrize(
    ("likelihood", "labels"),
    [
        (Bernoulli(), torch.randint(2, (BATCH, 3)).to(F64)),
        (Gaussian(0.5), torch.randn(BATCH, 3, dtype=F64)),
        (TokenCategorical(), torch.randint(3, (BATCH, TOKENS))),
    ],
)
def test_other_likelihoods_are_summed_over_an_example_and_scaled_to_the_data_set(likelihood, labels):
    model, guide = build(likelihood, pool=not isinstance(likelihood, TokenCategorical))
    x, _ = data()
    mask = torch.arange(TOKENS) < torch.tensor([[5], [2], [4], [1]])
    x = x.where(mask.unsqueeze(-1), 0.0)  # as the model sets it: this network pools over padding, too
    elbo = Trace_ELBO()
    with draws("example"):
        elbo(model, guide)(x, labels, mask)
    total = 0.0
    for b in range(BATCH):
        fixed = {"network.layers.0.u": drawn(elbo)[b]}
        outputs = poutine.condition(model.network, data=fixed)(x[b : b + 1], mask[b : b + 1])[0]
        if isinstance(likelihood, Bernoulli):
            each = -nn.functional.binary_cross_entropy_with_logits(outputs, labels[b], reduction="sum")
        elif isinstance(likelihood, Gaussian):
            each = torch.distributions.Normal(outputs, 0.5).log_prob(labels[b]).sum()
        else:
            each = outputs.log_softmax(-1).gather(-1, labels[b].unsqueeze(-1))[mask[b]].sum()
        total = total - N / BATCH * each.item()
    assert math.isclose(elbo.terms()["nll"], total, rel_tol=1e-6)


def test_padding_changes_neither_loss_nor_gradient():
    model, guide = build(TokenCategorical(), pool=False)
    x, _ = data()
    y, mask = torch.randint(3, (BATCH, TOKENS)), torch.arange(TOKENS) < torch.tensor([[3], [2], [4], [1]])
    results = []
    for padding in (0.0, 7.0):
        torch.manual_seed(0)
        model.zero_grad()
        loss = Trace_ELBO()(model, guide)(torch.where(mask.unsqueeze(-1), x, padding), y, mask)
        loss.backward()
        results.append((loss.detach(), model.network.embed.weight.grad.clone()))
    torch.testing.assert_close(results[0], results[1])


def test_labels_that_would_broadcast_to_a_wrong_loss_are_refused():
    model, guide = build(Gaussian(), outputs=1)
    x, _ = data()
    y = torch.randn(BATCH, dtype=F64)
    assert TraceMeanField_ELBO()(model, guide)(x, y.unsqueeze(-1)).isfinite()
    with pytest.raises(ValueError, match=r"labels of shape \(4, 1\), got \(4,\)"):
        TraceMeanField_ELBO()(model, guide)(x, y)
    classifier, guide = build()
    with pytest.raises(ValueError, match=r"labels of shape \(4,\), got \(4, 1\)"):
        TraceMeanField_ELBO()(classifier, guide)(x, torch.zeros(BATCH, 1, dtype=torch.long))


@pytest.mark.parametrize("num_data", [0, -3])
def test_the_size_of_the_data_set_must_be_positive(num_data):
    with pytest.raises(ValueError, match=f"size of the training set, got {num_data}"):
        Classifier(Network(), num_data=num_data)


def test_labels_are_drawn_where_they_are_not_given():
    model, _ = build()
    with torch.no_grad():
        model.network.head.bias.copy_(torch.tensor([0.0, 50.0, 0.0]))
    assert torch.equal(model(data()[0]), torch.ones(BATCH, dtype=torch.long))
