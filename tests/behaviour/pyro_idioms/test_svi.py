"""ELBOs and training loops of Pyro on layers of this library: SVI, torch loops, function guides."""

import elbos
import pyro
import pyro.distributions as dist
import pyro.infer as infer
import pytest
import torch
from idioms import SIGMA, Regression, bound, conjugate
from pyro.distributions import constraints
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.nn import PyroModule, PyroParam

from probattn import draws, guides
from probattn.inference import TrainOptions, fit, predict


class ModuleGuide(PyroModule):
    def __init__(self, model):
        super().__init__()
        self.loc = PyroParam(torch.zeros(4))
        self.scale_tril = PyroParam(0.3 * torch.eye(4), constraint=constraints.lower_cholesky)

    def forward(self, x, y=None):
        flat = dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril)
        to_site = dist.transforms.ReshapeTransform((4,), (1, 2, 2))
        return pyro.sample("attention.u", dist.TransformedDistribution(flat, to_site))


def function_guide(x, y=None):
    loc = pyro.param("loc", torch.zeros(1, 2, 2))
    scale = pyro.param("scale", torch.full((1, 2, 2), 0.3), constraint=constraints.positive)
    pyro.sample("attention.u", dist.Normal(loc, scale).to_event(3))


def gap(precision, blocks):
    """KL from the best Gaussian with independent blocks to the Gaussian of that precision (in
    nats)."""
    return 0.5 * (sum(precision[block][:, block].logdet() for block in blocks) - precision.logdet())


ROWS, SCALARS = ([0, 1], [2, 3]), ([0], [1], [2], [3])
GUIDES = {
    "for_model": (guides.for_model, ROWS),
    "AutoNormal": (infer.autoguide.AutoNormal, SCALARS),
    "function": (lambda model: function_guide, SCALARS),
    "module": (ModuleGuide, ([0, 1, 2, 3],)),
}
ELBOS = {
    "Trace": lambda: Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1),
    "TraceMeanField": infer.TraceMeanField_ELBO,
    "TraceGraph": infer.TraceGraph_ELBO,
    "JitTrace": lambda: infer.JitTrace_ELBO(ignore_jit_warnings=True),
}
FAST = ("Trace for_model", "TraceMeanField function", "TraceGraph AutoNormal", "JitTrace for_model")
FAST += ("TraceMeanField module",)
"""Every ELBO and every guide at least once; `make test-all` runs all pairs."""


@pytest.mark.parametrize(
    ("elbo", "guide"),
    [
        pytest.param(elbo, guide, marks=[pytest.mark.slow] * (f"{elbo} {guide}" not in FAST))
        for elbo in ELBOS
        for guide in GUIDES
    ],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_svi_reaches_the_best_bound_of_the_guides_family(problem, elbo, guide):
    model, x, y = problem
    make, blocks = GUIDES[guide]
    exact, guide = conjugate(model, x, y), make(model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.975}), ELBOS[elbo]())
    for _ in range(120):
        svi.step(x, y)
    best = -exact.evidence + gap(exact.precision, blocks)
    assert best - 0.25 < bound(model, guide, x, y) < best + 0.35
    sampled = Predictive(model, guide=guide, num_samples=300)(x)
    assert (sampled["y"].var(0) > 0.8 * SIGMA**2).all()
    spread = torch.linalg.inv(exact.precision).diagonal().sqrt()
    assert (
        (sampled["attention.u"].reshape(300, 4).mean(0) - exact.location).abs() < 0.5 * spread
    ).all()


@pytest.mark.slow
def test_renyi_bounds_are_tighter_than_the_elbo(problem):
    model, x, y = problem
    svi = SVI(
        model,
        function_guide,
        pyro.optim.Adam({"lr": 0.1}),
        infer.RenyiELBO(alpha=0.0, num_particles=10),
    )
    for _ in range(75):
        svi.step(x, y)
    with torch.no_grad():
        tight = -infer.RenyiELBO(alpha=0.0, num_particles=500).loss(model, function_guide, x, y)
    assert abs(tight - conjugate(model, x, y).evidence) < 0.3
    assert -bound(model, function_guide, x, y) < tight + 0.05


def test_nine_estimates_of_one_elbo_agree(problem):
    model, x, y = problem
    exact, guide = conjugate(model, x, y), guides.for_model(model)
    prior = model.attention.sites()["u"]
    q = guide.attention.u(prior)
    loc = q.mean.flatten().detach()
    tril = 1.5 * torch.block_diag(*guide.attention.u.scale_tril[0]).detach()
    expected = dist.Normal(exact.intercept + exact.features @ loc, SIGMA).log_prob(y).sum()
    expected -= 0.5 * (exact.features @ tril).square().sum() / SIGMA**2
    expected -= torch.distributions.kl_divergence(q, prior).item()
    kinds = (
        Trace_ELBO,
        infer.TraceMeanField_ELBO,
        infer.TraceGraph_ELBO,
        elbos.Trace_ELBO,
        elbos.TraceMeanField_ELBO,
    )
    estimates = [-elbos.losses(kind, model, guide, x, y, number=60) for kind in kinds]
    for number in ("example", 5):
        with draws(number):
            estimates.append(
                -elbos.losses(elbos.TraceMeanField_ELBO, model, guide, x, y, number=60)
            )
    for values in estimates:
        assert (values.mean() - expected).abs() < 5 * values.std() / len(values) ** 0.5 + 1e-4
    assert expected < exact.evidence


def test_module_guides_train_in_a_torch_loop_and_in_fit(problem):
    model, x, y = problem
    evidence, guide = conjugate(model, x, y).evidence, ModuleGuide(model)
    elbo = elbos.TraceMeanField_ELBO(num_particles=4)(model, guide)
    with pytest.raises(TypeError, match="not a Module"):
        elbos.TraceMeanField_ELBO()(model, function_guide)
    optimizer = torch.optim.Adam([p for p in elbo.parameters() if p.requires_grad], lr=0.1)
    before = bound(model, guide, x, y)
    for _ in range(150):
        optimizer.zero_grad()
        elbo(x, y).backward()
        optimizer.step()
    # A tenth of what there is to gain, and the noise of the last steps.
    assert bound(model, guide, x, y) + evidence < 0.1 * (before + evidence) + 0.5

    guide, options = ModuleGuide(model), TrainOptions(epochs=8, lr=0.1, num_particles=4)
    history = fit(model, guide, [(x, y)] * 20, options=options, progress=False)
    model.eval()
    assert bound(model, guide, x, y) + evidence < 0.5
    assert history.steps[-1]["loss"] < history.steps[0]["loss"]
    assert (predict(model, guide, x, num_samples=300).variance > SIGMA**2).all()


def test_two_models_in_one_process_share_no_parameters(problem):
    (_, x, y), (first, second) = problem, (Regression().requires_grad_(True) for _ in range(2))

    def step(model, guide):
        SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)

    first_guide, second_guide = guides.for_model(first), guides.for_model(second)
    before = {name: p.clone() for name, p in second.named_parameters()}
    step(first, first_guide)
    assert all(torch.equal(p, before[name]) for name, p in second.named_parameters())
    with pytest.raises(RuntimeError, match="clear_param_store"):
        step(second, second_guide)
    elbos.Trace_ELBO()(second, second_guide)(x, y).backward()  # modules do not need the store
    pyro.clear_param_store()
    step(second, second_guide)
    assert not torch.equal(second.attention.out.weight, before["attention.out.weight"])
