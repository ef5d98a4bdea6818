"""Local sites: sampled from their posteriors in one pass, scaled to the data set, weighted."""

import math
from contextlib import nullcontext

import elbos
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_feasible, init_to_median, init_to_sample
from sampling import under
from torch import nn
from torch.testing import assert_close

from probattn import SGPAttention, draws, local_posteriors, local_site, local_sites
from probattn.draws import at_mean
from probattn.models import Classifier
from probattn.site_info import site_info
from probattn.weights import alpha, kl_weight

X, Y = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.0, 3.0])
N = 30
A, C = 0.7, -0.4
LOC, SCALE = 0.6, 0.5


class Chain(nn.Module):
    """A weight that all share, and two values of each example, the second's posterior a function of
    the first's draw.

    w ~ N(0, 1); z1 ~ N(0, 1), posterior N(A x + w, 1/4); z2 ~ N(z1, 1), posterior N(C z1 + x,
    0.09); y ~ N(z2, 1).
    """

    def __init__(self, *, factor=False):
        super().__init__()
        self.unused, self.factor = nn.Parameter(torch.zeros(())), factor

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with local_sites(batch=len(x), num_data=N):
            zero = torch.zeros(torch.broadcast_shapes(w.shape, x.shape))
            first = local_site(dist.Normal(A * x + w, 0.5))
            z1 = pyro.sample("z1", dist.Normal(zero, 1.0), infer=first)
            second = local_site(dist.Normal(C * z1 + x, 0.3))
            z2 = pyro.sample("z2", dist.Normal(z1, 1.0), infer=second)
            if self.factor:
                for name, extra in (("r", {"regulariser": True}), ("penalty", {})):
                    unit = dist.Unit(-x.square().expand(zero.shape))
                    pyro.sample(
                        name,
                        unit,
                        obs=unit.sample(),
                        infer=site_info(local=True, **extra) | {"is_auxiliary": True},
                    )
            return pyro.sample("y", dist.Normal(z2, 1.0), obs=y, infer=local_site())


class Global(nn.Module):
    """The guide of one pass: it knows the shared site only."""

    def forward(self, x, y=None):
        return pyro.sample("w", dist.Normal(LOC, SCALE))


class Alone(nn.Module):
    """Nothing global below one site of each example, of two numbers with posterior N(slope x,
    1/4)."""

    def __init__(self, slope=1.0):
        super().__init__()
        self.slope = slope

    def forward(self, x, y=None):
        with local_sites(batch=len(x), num_data=N):
            posterior = dist.Normal(self.slope * x.unsqueeze(-1).expand(-1, 2), 0.5).to_event(1)
            prior = dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1)
            z = pyro.sample("z", prior, infer=local_site(posterior))
            return pyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=y, infer=local_site())


class Nothing(nn.Module):
    """The guide of a model without a global site."""

    def forward(self, x, y=None):
        pass


class TwoPass(nn.Module):
    """The guide of two passes: it runs the network below each local site itself, and draws it by
    name."""

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(LOC, SCALE))
        with local_sites(batch=len(x), num_data=N):
            z1 = pyro.sample("z1", dist.Normal(A * x + w, 0.5), infer=local_site())
            pyro.sample("z2", dist.Normal(C * z1 + x, 0.3), infer=local_site())


def chain_loss(weight=1.0):
    """Minus the ELBO of the whole data set in closed form, from the moments of w, z1 and z2 under
    the guide."""
    kl_w = 0.5 * (SCALE**2 + LOC**2 - 1 - math.log(SCALE**2))
    mean1, var1 = A * X + LOC, 0.25 + SCALE**2
    kl_1 = 0.5 * (0.25 + mean1.square() + SCALE**2 - 1 - math.log(0.25))
    kl_2 = 0.5 * (0.09 + ((C - 1) * mean1 + X).square() + (C - 1) ** 2 * var1 - 1 - math.log(0.09))
    squares = (Y - C * mean1 - X).square() + 0.09 + C**2 * var1
    return weight * kl_w + N / 3 * (kl_1 + kl_2 + 0.5 * math.log(2 * math.pi) + 0.5 * squares).sum()


LIBRARY = {Trace_ELBO: elbos.Trace_ELBO, TraceMeanField_ELBO: elbos.TraceMeanField_ELBO}
EACH_WAY = pytest.mark.parametrize("numbers", [(), ("example",), (4,), ("example", 4)])
EACH_ELBO = pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])


def sgpa_classifier(inducing=2):
    network = nn.Sequential(SGPAttention(8, 2, inducing=inducing), nn.Flatten(-2), nn.Linear(24, 2))
    return Classifier(network, num_data=4)


@EACH_ELBO
@pytest.mark.parametrize("numbers", [(), ("example", 4)])
def test_one_pass_and_two_passes_have_the_expected_loss_in_closed_form(elbo, numbers):
    """The library's ELBO draws local sites in the model's pass; Pyro's own with a guide that knows
    them agrees."""
    for objective, guide in (
        (LIBRARY[elbo](), Global()),
        (elbo(), TwoPass()),
        (LIBRARY[elbo](), TwoPass()),
    ):
        program = Chain()
        with torch.no_grad(), under(*map(draws, numbers)):
            losses = torch.stack(
                [objective.differentiable_loss(program, guide, X, Y) for _ in range(80)]
            )
        assert (losses.mean() - chain_loss()).abs() < 4 * losses.std() / 80**0.5


@pytest.mark.parametrize("number", [1, 3, 5])
def test_draws_below_every_global_site_are_a_new_first_dimension_at_a_local_site(number):
    """S different draws, also where S is the batch, and nothing global lies below; they average in
    the density."""
    for elbo in LIBRARY.values():
        objective = elbo()
        with draws(number):
            loss = objective.differentiable_loss(Alone(), Nothing(), X, Y)
        z = objective.traces[0].nodes["z"]["value"]
        assert z.shape == (number, 3, 2)
        assert len(z.unique()) == z.numel()
        prior, posterior = dist.Normal(0.0, 1.0), dist.Normal(X.unsqueeze(-1), 0.5)
        kl = torch.distributions.kl_divergence(posterior, prior).sum(-1) * 2
        log_likelihood = dist.Normal(z.sum(-1), 1.0).log_prob(Y).mean(0)
        assert_close(loss, N / 3 * (kl - log_likelihood).sum())
    with draws("example"), draws(number):
        objective.differentiable_loss(Alone(), Nothing(), X, Y)
    z = objective.traces[0].nodes["z"]["value"]
    assert z.shape == (number, 3, 2)
    assert len(z.unique()) == z.numel()


# Handler, the terms that it multiplies, and by what; what is observed and what all share keep their
# scale.
WEIGHTS = {
    "kl": (lambda: kl_weight(0.25), {"kl/w"}, 0.25),
    "local": (lambda: kl_weight(1.0, local=0.25), {"kl/z1", "kl/z2"}, 0.25),
    "alpha": (lambda: alpha(0.7), {"penalty/r"}, 0.7),
    "no alpha": (lambda: alpha(0.0), {"penalty/r"}, 0.0),
}


@EACH_ELBO
@pytest.mark.parametrize(("handler", "weighted", "weight"), WEIGHTS.values(), ids=WEIGHTS)
def test_each_weight_scales_its_terms_alone(elbo, handler, weighted, weight):
    terms = []
    for handlers in ((), (handler(),)):
        objective = LIBRARY[elbo]()
        torch.manual_seed(0)
        with under(*handlers):
            loss = objective.differentiable_loss(Chain(factor=True), Global(), X, Y)
        terms.append(objective.terms())
        assert sum(terms[-1].values()) == pytest.approx(loss.item(), rel=1e-5)
    expected = {
        name: (weight if name in weighted else 1.0) * value for name, value in terms[0].items()
    }
    assert terms[1] == pytest.approx(expected, rel=1e-5)
    assert (
        weighted
        < expected.keys()
        == {"nll", "kl/w", "kl/z1", "kl/z2", "penalty/r", "penalty/penalty"}
    )
    assert terms[0]["penalty/r"] == pytest.approx(N / 3 * X.square().sum().item())
    if elbo is TraceMeanField_ELBO:
        assert terms[0]["kl/w"] == pytest.approx(
            0.5 * (SCALE**2 + LOC**2 - 1 - math.log(SCALE**2)), rel=1e-5
        )


@pytest.mark.parametrize("number", [None, 4])
def test_at_mean_puts_local_sites_at_the_mean_of_their_posteriors_given_those_below(number):
    handlers = [at_mean()] if number is None else [at_mean(), draws(number)]
    for order in (handlers, handlers[::-1]):
        objective = elbos.Trace_ELBO()
        with under(*order):
            objective.differentiable_loss(Chain(), Global(), X, Y)
        nodes = objective.traces[0].nodes
        mean = A * X + LOC
        for name, expected in (("z1", mean), ("z2", C * mean + X)):
            assert_close(nodes[name]["value"], expected.expand(nodes[name]["value"].shape))
    with at_mean():
        nodes = poutine.trace(Chain()).get_trace(X).nodes
    assert_close(nodes["z1"]["value"], A * X)


@EACH_ELBO
@EACH_WAY
def test_batches_are_an_unbiased_estimate_of_the_data_set_with_local_sites(elbo, numbers):
    """Everything at its mean: the losses of disjoint batches average to that of all examples at
    once."""
    x, y = torch.randn(N), torch.randn(N)

    def loss(index):
        with under(at_mean(), *map(draws, numbers)):
            return LIBRARY[elbo]().differentiable_loss(
                Chain(factor=True), Global(), x[index], y[index]
            )

    batches = torch.randperm(N).split(5)
    whole = loss(torch.arange(N))
    assert_close(sum(loss(batch) for batch in batches) / len(batches), whole)
    assert (loss(batches[0]) - whole).abs() > 1e-2


@pytest.mark.parametrize("init", [init_to_feasible, init_to_median, init_to_sample])
def test_an_autoguides_initial_values_leave_local_sites_to_their_posteriors(init):
    model = local_posteriors(sgpa_classifier())
    x, y = torch.randn(4, 3, 8), torch.zeros(4, dtype=torch.long)
    for first in (nullcontext(), draws(3), pyro.plate("particles", 5, dim=-2)):
        guide = AutoNormal(model, init_loc_fn=init)
        with first:
            guide(x, y)
        assert set(guide(x, y)) == {"network.0.u"}
