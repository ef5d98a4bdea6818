"""ELBOs and training loops of Pyro on layers of this library: SVI, torch loops, function guides."""

import elbos
import pyro
import pytest
import torch
from pyro.infer import (
    SVI,
    JitTrace_ELBO,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
)
from torch.testing import assert_close

from probattn import draws, guides
from probattn.inference import TrainOptions, fit, predict

N, SIGMA = 12, 0.4
ROWS = ([0, 1], [2, 3])
SCALARS = ([0], [1], [2], [3])
ELBOS = {
    "Trace": lambda: Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1),
    "TraceMeanField": TraceMeanField_ELBO,
    "TraceGraph": TraceGraph_ELBO,
    "JitTrace": lambda: JitTrace_ELBO(ignore_jit_warnings=True),
}
FAST = {
    ("Trace", "for_model"),
    ("TraceMeanField", "function"),
    ("TraceGraph", "AutoNormal"),
    ("JitTrace", "for_model"),
    ("TraceMeanField", "module"),
}
"""Every ELBO and every guide at least once; `make test-all` runs all pairs."""
PAIRS = [
    pytest.param(elbo, guide, marks=() if (elbo, guide) in FAST else pytest.mark.slow)
    for elbo in ELBOS
    for guide in ("for_model", "AutoNormal", "function", "module")
]


@pytest.mark.parametrize(("elbo", "guide"), PAIRS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_svi_reaches_the_best_bound_of_the_guides_family(idioms, problem, elbo, guide):
    model, x, y = problem
    make, blocks = {
        "for_model": (guides.for_model, ROWS),
        "AutoNormal": (autoguide.AutoNormal, SCALARS),
        "function": (lambda model: idioms.function_guide, SCALARS),
        "module": (idioms.ModuleGuide, ([0, 1, 2, 3],)),
    }[guide]
    evidence, location, precision, *_ = idioms.conjugate(model, x, y)
    guide = make(model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.985}), ELBOS[elbo]())
    for _ in range(200):
        svi.step(x, y)
    best = -evidence + idioms.gap(precision, blocks)
    assert best - 0.25 < idioms.bound(model, guide, x, y) < best + 0.35
    drawn = Predictive(model, guide=guide, num_samples=300)(x)
    assert (drawn["y"].var(0) > 0.8 * SIGMA**2).all()
    found = drawn["attention.u"].reshape(300, 4)
    spread = torch.linalg.inv(precision).diagonal().sqrt()
    assert ((found.mean(0) - location).abs() < 0.5 * spread).all()


@pytest.mark.slow
def test_renyi_bounds_are_tighter_than_the_elbo(idioms, problem):
    model, x, y = problem
    evidence = idioms.conjugate(model, x, y)[0]
    svi = SVI(model, idioms.function_guide, pyro.optim.Adam({"lr": 0.1}), RenyiELBO(alpha=0.0, num_particles=10))
    for _ in range(75):
        svi.step(x, y)
    with torch.no_grad():
        tight = -RenyiELBO(alpha=0.0, num_particles=500).loss(model, idioms.function_guide, x, y)
    assert abs(tight - evidence) < 0.3
    assert -idioms.bound(model, idioms.function_guide, x, y) < tight + 0.05


def test_nine_estimates_of_one_elbo_agree(idioms, problem):
    model, x, y = problem
    evidence, _, precision, features, intercept = idioms.conjugate(model, x, y)
    guide = guides.for_model(model)
    q = guide.attention.u(model.attention.sites()["u"])
    loc, tril = q.mean.flatten().detach(), 1.5 * torch.block_diag(*guide.attention.u.scale_tril[0]).detach()
    residual = y - intercept - features @ loc
    expected = torch.distributions.Normal(0, SIGMA).log_prob(residual).sum()
    expected -= 0.5 * (features @ tril).square().sum() / SIGMA**2
    expected -= torch.distributions.kl_divergence(q, model.attention.sites()["u"]).item()
    kinds = (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO, elbos.Trace_ELBO, elbos.TraceMeanField_ELBO)
    estimates = {kind: [-kind().loss(model, guide, x, y) for _ in range(150)] for kind in kinds}
    elbo = elbos.TraceMeanField_ELBO()(model, guide)
    for number in ("example", 5):
        with draws(number):
            estimates[number] = [-elbo(x, y).item() for _ in range(150)]
    for values in map(torch.tensor, estimates.values()):
        assert (values.mean() - expected).abs() < 5 * values.std() / len(values) ** 0.5 + 1e-4
    assert expected < evidence


def test_module_guides_train_in_a_torch_loop_and_in_fit(idioms, problem):
    model, x, y = problem
    evidence = idioms.conjugate(model, x, y)[0]
    guide = idioms.ModuleGuide(model)
    elbo = elbos.TraceMeanField_ELBO(num_particles=4)(model, guide)
    with pytest.raises(TypeError, match="not a Module"):
        elbos.TraceMeanField_ELBO()(model, idioms.function_guide)
    optimizer = torch.optim.Adam([p for p in elbo.parameters() if p.requires_grad], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        elbo(x, y).backward()
        optimizer.step()
    assert abs(idioms.bound(model, guide, x, y) + evidence) < 0.3

    pyro.clear_param_store()
    guide = idioms.ModuleGuide(model)
    options = TrainOptions(epochs=8, lr=0.1, num_particles=4)
    history = fit(model, guide, [(x, y)] * 20, options=options, progress=False)
    model.eval()
    assert abs(idioms.bound(model, guide, x, y) + evidence) < 0.4
    assert history.steps[-1]["loss"] < history.steps[0]["loss"]
    spread = predict(model, guide, x, num_samples=300).variance - SIGMA**2
    assert (spread > 0).all()


def test_plain_functions_are_models(idioms, problem):
    module, x, y = problem

    def model(x, y=None):
        return module(x, y)

    evidence, _, precision, *_ = idioms.conjugate(module, x, y)
    guide = guides.for_model(module)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.985}), Trace_ELBO(num_particles=4))
    for _ in range(200):
        svi.step(x, y)
    assert abs(idioms.bound(model, guide, x, y) + evidence - idioms.gap(precision, ROWS)) < 0.4
    _, location, _, features, intercept = idioms.conjugate(module, x, y)
    found = Predictive(model, guide=guide, num_samples=600)(x)["y"].mean(0)
    assert_close(found, intercept + features @ location, atol=0.25, rtol=0)


def test_two_models_in_one_process_share_no_parameters(idioms, problem):
    first, x, y = problem
    second = idioms.Regression()
    for model in (first, second):
        model.requires_grad_(True)
    first_guide, second_guide = guides.for_model(first), guides.for_model(second)
    before = {name: p.clone() for name, p in second.named_parameters()}
    for _ in range(3):
        SVI(first, first_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    assert all(torch.equal(p, before[name]) for name, p in second.named_parameters())
    with pytest.raises(RuntimeError, match="clear_param_store"):
        SVI(second, second_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    elbo = elbos.Trace_ELBO()(second, second_guide)  # modules do not need the store
    elbo(x, y).backward()
    pyro.clear_param_store()
    SVI(second, second_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    assert not torch.equal(second.attention.out.weight, before["attention.out.weight"])
