"""Terms of the library's ELBOs, and their precision under autocast."""

import math
from contextlib import ExitStack, nullcontext

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import nn

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, draws, guides, local_sites
from probattn.draws import at_mean
from probattn.inference.objective import guide_checks
from probattn.models import Classifier
from probattn.weights import kl_weight

N, BATCH = 12, 4
SITES = ("network.0.u", "network.1.u")
AUTO = [AutoNormal, AutoMultivariateNormal, AutoDelta, AutoLowRankMultivariateNormal]
GUIDES = pytest.mark.parametrize("family", ["full", "diagonal", "lowrank", "delta", *AUTO])
ELBOS = pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO])


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def build(family="full", *, prior=None, dtype=torch.float64):
    layer = KEPSVGPAttention.partial(rank=2, eta=0.5, prior=prior)
    network = nn.Sequential(layer(4, 2), layer(4, 1), Pool(), nn.Linear(4, 3))
    model = Classifier(network, num_data=N).to(dtype)
    x, y = torch.randn(BATCH, 5, 4, dtype=dtype), torch.randint(3, (BATCH,))
    with torch.no_grad():
        for i in (0, 1):
            network[i].log_scale.add_(torch.randn_like(network[i].log_scale) / 3)
    if isinstance(family, str):
        return model, guides.for_model(model, family), x, y
    guide = family(model)
    guide_checks.materialise(guide, (x, y))
    return model, guide.to(dtype), x, y


@GUIDES
@ELBOS
@pytest.mark.parametrize("handlers", [(), ("example",), ("example", 3), (3,)])
@pytest.mark.parametrize("prior", [None, "laplace"])
def test_terms_sum_to_the_loss(family, elbo, handlers, prior):
    model, guide, x, y = build(family, prior=prior)
    elbo = elbo()
    with ExitStack() as stack:
        stack.enter_context(kl_weight(0.7))
        for number in handlers:
            stack.enter_context(draws(number))
        loss = elbo(model, guide)(x, y)
    terms = elbo.terms()
    assert math.isclose(sum(terms.values()), loss.item(), rel_tol=1e-10)
    assert {"nll", "penalty/network.0.ksvd", "penalty/network.1.ksvd"} < set(terms)
    assert {f"kl/{site}" for site in SITES} < set(terms)


@GUIDES
@pytest.mark.parametrize("number", ["example", 3])
def test_expected_kl_counts_once_whatever_the_number_of_draws(family, number):
    """The KL terms of closed-form guides are the same number for every number of draws."""
    model, guide, x, y = build(family)
    elbo = TraceMeanField_ELBO()
    totals = []
    for n in (1, number):
        with draws(n):
            elbo(model, guide)(x, y)
        totals.append(sum(value for name, value in elbo.terms().items() if name.startswith("kl/")))
    if family in ("full", "diagonal", "lowrank", "delta", AutoDelta):
        assert math.isclose(*totals, rel_tol=1e-10)
        return
    values = []
    torch.manual_seed(0)
    for n in (1, number):
        each = []
        for _ in range(60):
            with draws(n):
                elbo(model, guide)(x, y)
            each.append(sum(value for name, value in elbo.terms().items() if name.startswith("kl/")))
        values.append(torch.tensor(each))
    error = sum(v.var() / len(v) for v in values).sqrt()
    assert (values[0].mean() - values[1].mean()).abs() < 4.5 * error


@ELBOS
def test_terms_of_the_prior_as_guide_are_zero(elbo):
    model, guide, x, y = build("full")
    with torch.no_grad():
        for site in SITES:
            q = guide.get_submodule(site)
            q.loc.zero_()
            tril = torch.eye(q.loc.shape[-1]).expand_as(q.raw_tril)
            q.raw_tril.copy_(torch.distributions.transform_to(dist.constraints.softplus_lower_cholesky).inv(tril))
    elbo = elbo()
    with draws("example"):
        elbo(model, guide)(x, y)
    for site in SITES:
        assert abs(elbo.terms()[f"kl/{site}"]) < 1e-8


@ELBOS
@pytest.mark.parametrize("family", ["full", "diagonal", "lowrank", "delta", AutoNormal, AutoMultivariateNormal])
@pytest.mark.parametrize("number", ["example", 3])
def test_under_autocast_guide_densities_and_kl_stay_in_float32(elbo, family, number):
    model, guide, x, y = build(family, dtype=torch.float32)
    seen = []
    model.network[0].query_key.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    losses, objective = [], elbo()
    for half in (False, True):
        torch.manual_seed(0)
        with draws(number), torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(objective(model, guide)(x, y))
    assert seen == [torch.float32, torch.bfloat16]
    assert losses[1].dtype == torch.float32
    assert losses[0].item() != losses[1].item()
    torch.testing.assert_close(losses[1], losses[0], rtol=0.05, atol=0.5)
    for trace in objective.traces:
        trace.compute_log_prob()
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and not name.startswith("_"):
                assert node["log_prob_sum"].dtype == torch.float32, name
                if node["value"].is_floating_point():
                    assert node["value"].dtype == torch.float32, name
    model_trace, guide_trace = objective.traces
    for site in SITES:
        if family in ("full", "diagonal", "lowrank"):
            kl = torch.distributions.kl_divergence(guide_trace.nodes[site]["fn"], model_trace.nodes[site]["fn"])
            assert kl.dtype == torch.float32


@ELBOS
def test_the_kl_is_independent_of_autocast(elbo):
    model, guide, x, y = build("full", dtype=torch.float32)
    terms = []
    for half in (False, True):
        torch.manual_seed(0)
        objective = elbo()
        with draws("example"), torch.autocast("cpu", torch.bfloat16, enabled=half):
            objective(model, guide)(x, y)
        terms.append(objective.terms())
    assert terms[0]["nll"] != terms[1]["nll"]
    for site in SITES:
        assert terms[0][f"kl/{site}"] == terms[1][f"kl/{site}"]


def test_the_network_is_in_autocast_again_within_the_elbo_and_the_backward_pass_works():
    model, guide, x, y = build("full", dtype=torch.float32)
    with draws("example"), torch.autocast("cpu", torch.bfloat16):
        loss = TraceMeanField_ELBO()(model, guide)(x, y)
    assert not torch.is_autocast_enabled("cpu")
    loss.backward()
    for module in (model, guide):
        for name, parameter in module.named_parameters():
            assert parameter.grad.dtype == torch.float32, name
            assert parameter.grad.isfinite().all(), name


LOCAL = pytest.mark.parametrize(
    "options",
    [{"inducing": 2}, {"inducing": 2, "draws": "joint"}, {"inducing": None}, {"inducing": None, "draws": "joint"}],
    ids=["marginal", "joint", "standard", "standard joint"],
)


class Above(nn.Module):
    """Two layers with local sites, of which the second sees the first's draws, between layers with global ones."""

    def __init__(self, **options):
        super().__init__()
        local, other = SGPAttention.partial(**options), KEPSVGPAttention.partial(rank=2)
        self.layers = nn.ModuleList([local(4, 2), other(4, 2), local(4, 1)])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(-2))


def build_local(*, num_data=N, **options):
    model = Classifier(Above(**options), num_data=num_data).double()
    return model, guides.for_model(model), torch.randn(BATCH, 5, 4, dtype=torch.float64), torch.randint(3, (BATCH,))


class TwoPass(nn.Module):
    """Guide that samples the global sites, runs the network below each local site itself, and samples that by name."""

    def __init__(self, model, guide):
        super().__init__()
        self.held, self.guide = (model,), guide

    def forward(self, x, y=None):
        model = self.held[0]
        values = self.guide(x, y)
        for i, layer in enumerate(model.network.layers):
            name = f"network.layers.{i}.g"
            with poutine.block(), torch.random.fork_rng(devices=[]):
                given = poutine.condition(layer, data=values)
                nodes = poutine.trace(given).get_trace(x).nodes
            if name in nodes:
                with local_sites(batch=len(y), num_data=model.num_data):
                    posterior = nodes[name]["infer"]["posterior"]
                    infer = {"local": True, "posterior": posterior}  # as draws(number) knows a site of one example
                    values[name] = pyro.sample(name, posterior, infer=infer)
            with poutine.block():
                x = x + poutine.condition(layer, data=values)(x)


@LOCAL
@pytest.mark.parametrize("handlers", [(), ("example",), (3,), ("example", 3)])
@pytest.mark.filterwarnings("ignore:Failed to verify mean field")  # of Pyro's own: its guide draws u first
def test_one_pass_is_pyros_elbo_of_a_guide_that_runs_the_network_itself(options, handlers):
    """From one random state, Pyro's own ELBO with the guide of two passes returns the same loss and gradient."""
    model, guide, x, y = build_local(**options)
    objective, plain = TraceMeanField_ELBO(), pyro.infer.TraceMeanField_ELBO()
    with ExitStack() as stack:
        for number in handlers:
            stack.enter_context(draws(number))
        torch.manual_seed(3)
        loss = objective.differentiable_loss(model, guide, x, y)
        torch.manual_seed(3)
        other = plain.differentiable_loss(model, TwoPass(model, guide), x, y)
    torch.testing.assert_close(loss, other)
    parameters = [*model.parameters(), *guide.parameters()]
    gradients = [torch.autograd.grad(each, parameters, retain_graph=True) for each in (loss, other)]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)
    assert math.isclose(sum(objective.terms().values()), loss.item(), rel_tol=1e-10)
    assert {"kl/network.layers.0.g", "kl/network.layers.2.g", "kl/network.layers.1.u"} < set(objective.terms())


@pytest.mark.parametrize("inducing", [2, None])
@pytest.mark.parametrize("handlers", [("example",), (8,)])
def test_one_pass_is_in_expectation_pyros_trace_elbo_of_two_passes(inducing, handlers):
    """The local KL has a closed form in one pass; the losses of one random state differ by noise of mean 0."""
    model, guide, x, y = build_local(inducing=inducing, draws="joint")
    two, differences = TwoPass(model, guide), []
    with torch.no_grad(), ExitStack() as stack:
        for number in handlers:
            stack.enter_context(draws(number))
        for seed in range(25):
            torch.manual_seed(seed)
            loss = Trace_ELBO().loss(model, guide, x, y)
            torch.manual_seed(seed)
            differences.append(loss - pyro.infer.Trace_ELBO().loss(model, two, x, y))
    differences = torch.tensor(differences)
    assert differences.std() > 1e-3
    assert differences.mean().abs() < 4.5 * differences.std() / len(differences) ** 0.5


@LOCAL
@pytest.mark.filterwarnings("ignore:Failed to verify mean field")
def test_a_guide_of_two_passes_works_in_the_librarys_elbo(options):
    """Its samples are used: the model's pass draws none; the same random state gives the same loss."""
    model, guide, x, y = build_local(**options)
    losses, values = [], []
    for each in (guide, TwoPass(model, guide)):
        torch.manual_seed(3)
        objective = TraceMeanField_ELBO()
        losses.append(objective.differentiable_loss(model, each, x, y))
        model_trace, guide_trace = objective.traces
        for name in guide_trace.nodes:
            if name.endswith((".u", ".g")):
                assert torch.equal(model_trace.nodes[name]["value"], guide_trace.nodes[name]["value"])
        values.append([model_trace.nodes[f"network.layers.{i}.g"]["value"] for i in (0, 2)])
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(values[0], values[1])


@ELBOS
@LOCAL
def test_batches_are_an_unbiased_estimate_of_the_data_set_with_local_sites(elbo, options):
    """Everything at its mean: the losses of disjoint batches average to that of all N examples; the KL of u is one."""
    model, guide, _, _ = build_local(**options)
    x, y = torch.randn(N, 5, 4, dtype=torch.float64), torch.randint(3, (N,))

    def terms(index):
        objective = elbo()
        with at_mean(), draws("example"):
            objective(model, guide)(x[index], y[index])
        return objective.terms()

    parts, whole = [terms(batch) for batch in torch.randperm(N).split(BATCH)], terms(torch.arange(N))
    assert len(parts) == N // BATCH
    for name, value in whole.items():
        assert math.isclose(sum(part[name] for part in parts) / len(parts), value, rel_tol=1e-9, abs_tol=1e-9), name
    u = "kl/network.layers.1.u"
    assert math.isclose(parts[0][u], whole[u], rel_tol=1e-9)
    assert not math.isclose(parts[0]["nll"], whole["nll"], rel_tol=1e-6)


@ELBOS
def test_kl_weight_leaves_the_kl_of_local_sites_alone(elbo):
    model, guide, x, y = build_local(inducing=2)
    terms = []
    for weight in (1.0, 0.25):
        objective = elbo()
        torch.manual_seed(0)
        with kl_weight(weight), draws("example"):
            objective(model, guide)(x, y)
        terms.append(objective.terms())
    for name, value in terms[0].items():
        share = 0.25 if name.startswith("kl/") and name.endswith(".u") else 1.0
        assert math.isclose(terms[1][name], share * value, rel_tol=1e-9), name


def test_the_network_runs_once_a_loss():
    model, guide, x, y = build_local(inducing=2)
    calls = []
    model.network.layers[0].query_value.register_forward_hook(lambda *_: calls.append(None))
    with draws("example"):
        TraceMeanField_ELBO()(model, guide)(x, y)
    assert len(calls) == 1


def test_terms_leave_out_what_is_drawn_from_its_prior_by_design():
    torch.manual_seed(0)
    network = nn.Sequential(CGPAttention(8, 2, canonical_guide="prior"), nn.Flatten(-2), nn.Linear(24, 2))
    model = Classifier(network, num_data=4)
    elbo = TraceMeanField_ELBO()
    for number in (None, 3):
        with draws(number) if number else nullcontext():
            loss = elbo(model, guides.for_model(model))(torch.randn(4, 3, 8), torch.zeros(4, dtype=torch.long))
        terms = elbo.terms()
        assert set(terms) == {"nll", "penalty/network.0.nu", "penalty/network.0.z_k"}
        assert sum(terms.values()) == pytest.approx(loss.item(), rel=1e-5)
