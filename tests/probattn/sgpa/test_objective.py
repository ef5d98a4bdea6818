"""The objective of SGPA: its terms in closed form, both ELBOs, gradients, priors, families and AutoGuides."""

import math

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import nn
from torch.testing import assert_close

from probattn import draws, families, local_posteriors, priors
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.inference.objective import guide_checks

F64 = torch.float64
ELBOS = pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
DRAWS = pytest.mark.parametrize("how", ["marginal", "joint"])
FORMS = pytest.mark.parametrize("inducing", [3, None])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@ELBOS
@FORMS
@DRAWS
def test_terms_of_the_loss_are_maths(sgpa, how, inducing, elbo):
    """KL of u once, KL of g for every example times N/B."""
    model, guide = sgpa.build(layers=1, inducing=inducing, draws=how, num_data=10)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    layer, objective = model.network.layers[0], elbo()
    objective(model, guide)(x, y)
    heads = sgpa.heads_of(layer, x)
    expected = 10 / 2 * sum(head.kl for row in heads for head in row)
    assert_close(objective.terms()["kl/network.layers.0.g"], expected.item())
    if inducing is not None and elbo is TraceMeanField_ELBO:
        u, total = guide.get_submodule("network.layers.0.u"), 0.0
        for h, head in enumerate(heads[0]):
            for d in range(3):
                t, v = u.scale_tril[h, d], torch.linalg.solve(head.tril.T, u.loc[h, d])
                total += 0.5 * (torch.trace(t @ t.T) - torch.logdet(t @ t.T) - 3 + v @ head.k_bb @ v)
        assert_close(objective.terms()["kl/network.layers.0.u"], total.item())


@ELBOS
@FORMS
def test_marginal_draws_keep_the_joint_kl_at_every_draw(sgpa, inducing, elbo):
    model, guide = sgpa.build(layers=1, inducing=inducing, num_data=2)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    expected = sum(head.kl for row in sgpa.heads_of(model.network.layers[0], x) for head in row)
    for number in (None, "example", 4):
        objective = elbo()
        with draws(number) if number else poutine.block(hide=[]):
            loss = objective(model, guide)(x, y)
        assert_close(objective.terms()["kl/network.layers.0.g"], expected.item())
        assert math.isclose(sum(objective.terms().values()), loss.item(), rel_tol=1e-10)


@FORMS
@DRAWS
@pytest.mark.parametrize("kind", ["ard", "exponential", "rbf"])
@ELBOS
def test_every_parameter_gets_a_gradient(sgpa, kind, inducing, how, elbo):
    model, guide = sgpa.build(inducing=inducing, draws=how, kernel=kind, bias=True)
    with draws("example"):
        elbo()(model, guide)(randn(4, 5, 6), torch.tensor([0, 1, 2, 0])).backward()
    parameters = [*model.named_parameters(), *guide.named_parameters()]
    missing = [name for name, p in parameters if p.grad is None or not p.grad.abs().sum() > 0]
    assert missing == []
    for name, parameter in parameters:
        assert parameter.grad.isfinite().all(), name


@FORMS
@DRAWS
def test_gradcheck_of_the_layer_and_its_kl(sgpa, how, inducing):
    layer = sgpa.make(dim=4, inducing=inducing and 2, draws=how)
    x = randn(1, 3, 4).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]
    u = {} if inducing is None else {"u": randn(2, 2, 2, seed=1)}

    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            torch.manual_seed(3)
            trace = poutine.trace(local_posteriors(poutine.condition(self.layer, data=u))).get_trace(x)
            log_prior = self.layer.remainder(x, None).prior.log_prob(trace.nodes["g"]["value"])
            return trace.nodes["_RETURN"]["value"], trace.nodes["g_kl"]["fn"].log_factor, log_prior

    program = Program()

    def function(x, *parameters):
        values = {f"layer.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(program, values, (x,))

    parameters = tuple(parameter.detach().requires_grad_() for parameter in layer.parameters())
    assert torch.autograd.gradcheck(function, (x, *parameters))


@pytest.mark.parametrize(
    ("prior", "family"),
    [
        pytest.param(prior, family, marks=() if prior == "horseshoe" or family == "lowrank" else pytest.mark.slow)
        for prior in priors.PRIORS
        for family in families.FAMILIES
    ],
)
def test_every_prior_trains_with_every_family(sgpa, prior, family):
    model, guide = sgpa.build(prior=prior, family=family)
    x, y = randn(4, 5, 6), torch.tensor([0, 1, 2, 0])
    elbo = TraceMeanField_ELBO()(model, guide)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.05)
    torch.manual_seed(0)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        with draws("example"):
            loss = elbo(x, y) / 12
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in elbo.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]) - 0.3


@pytest.mark.parametrize("auto", [AutoNormal, AutoMultivariateNormal])
@ELBOS
def test_autoguides_guide_the_global_part(sgpa, auto, elbo):
    model, _ = sgpa.build()
    x, y = randn(4, 5, 6), torch.tensor([0, 1, 2, 0])
    guide = auto(local_posteriors(model))
    guide_checks.materialise(guide, (x, y))
    guide_checks.check(model, guide)
    guide.double()
    latents = set(guide(x, y))
    assert {name for name in latents if name.startswith("network")} == {f"network.layers.{i}.u" for i in (0, 1)}
    objective = elbo()
    with draws("example"):
        loss = objective(model, guide)(x, y)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in [*model.parameters(), *guide.parameters()])
    assert {f"kl/network.layers.{i}.{site}" for i in (0, 1) for site in "ug"} <= set(objective.terms())
    heads = sgpa.heads_of(model.network.layers[0], x)
    expected = 12 / 4 * sum(head.kl for row in heads for head in row)
    assert_close(objective.terms()["kl/network.layers.0.g"], expected.item())
    assert predict(model, guide, x, num_samples=3).probs.shape == (4, 3)


def test_an_autoguide_of_the_local_sites_is_refused_with_the_way_out(sgpa):
    model, _ = sgpa.build()
    model.float()
    x, y = torch.randn(4, 5, 6), torch.tensor([0, 1, 2, 0])
    guide = AutoNormal(model)
    with pytest.raises(ValueError, match=r"network\.layers\.0\.g.*AutoNormal\(local_posteriors\(model\)\)"):
        guide_checks.materialise(guide, (x, y))
    with pytest.raises(ValueError, match="local_posteriors"):
        guide_checks.check(model, guide)


def test_under_autocast_kernel_densities_and_draws_stay_in_float32(sgpa):
    model, guide = sgpa.build(draws="joint")
    model, guide = model.float(), guide.float()
    x, y, objective = torch.randn(4, 5, 6), torch.tensor([0, 1, 2, 0]), TraceMeanField_ELBO()
    losses = []
    for half in (False, True):
        with at_mean(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(objective(model, guide)(x, y))
    assert_close(losses[1], losses[0], rtol=3e-2, atol=0.3)
    for trace in objective.traces:
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and name.endswith(".g"):
                assert node["value"].dtype == torch.float32
                assert node["fn"].log_prob(node["value"]).dtype == torch.float32
