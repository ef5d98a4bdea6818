"""Programs as Pyro users write them around layers, with values from independent calculations in
float64."""

import copy
import functools

import elbos
import pyro
import pyro.distributions as dist
import pyro.ops.integrator as integrator
import pyro.poutine as poutine
import pytest
import torch
from attention_layers import LAYERS
from export_cases import vit
from idioms import Pool, Program
from idioms import classifier as make_classifier
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributions import kl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    SGPAttention,
    draws,
    guides,
    local_posteriors,
    name_layers,
    priors,
)
from probattn.draws import at_mean
from probattn.inference import ELBOLoss, TrainOptions, fit, predict

N = 6
KEP = KEPSVGPAttention.partial(rank=2)
classifier = functools.partial(make_classifier, num_data=N)


@pytest.fixture(autouse=True)
def double():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default)


@pytest.fixture
def data():
    return torch.randn(N, 4, 8), torch.arange(N) % 3


class Own(PyroModule):
    """A user's own classifier."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = PyroModule[nn.Sequential](*layers, Pool(), nn.Linear(8, 3))
        name_layers(self)

    def forward(self, x, y):
        logits = self.layers(x)
        with pyro.plate("data", N):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


class Effects(PyroModule):
    """Regression on a layer, with a random effect of each example."""

    num_data = 20

    def __init__(self):
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(8, 2, rank=2, eta=0.0), nn.Linear(8, 1)
        name_layers(self)

    def forward(self, x, y=None, rows=None):
        with pyro.plate("data", self.num_data, subsample_size=len(x), subsample=rows):
            mean = self.head(self.attention(x).mean(-2)).squeeze(-1)
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
            return pyro.sample("y", dist.Normal(mean + effect, 0.5), obs=y)


def steps(model, guide, x, y, *, elbo=TraceMeanField_ELBO, number=3, lr=0.05):
    svi = SVI(model, guide, pyro.optim.Adam({"lr": lr}), elbo())
    return [svi.step(x, y) for _ in range(number)]


PRESENT, WEIGHTS = torch.tensor([1, 1, 0, 1, 0, 0]).bool(), torch.tensor([1, 2, 0.5, 1, 1, 3])


@pytest.mark.parametrize(
    ("handler", "factor"),
    [(poutine.mask(mask=PRESENT), PRESENT), (poutine.scale(scale=WEIGHTS), WEIGHTS)],
)
def test_masks_and_scales_of_single_examples_leave_the_density_of_u_alone(data, handler, factor):
    attention, head = KEPSVGPAttention(8, 2, rank=2, eta=0.0), nn.Linear(8, 3)

    def model(x, y):
        with pyro.plate("data", N), handler:
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    trace = poutine.trace(model).get_trace(*data)
    likelihood = dist.Categorical(logits=trace.nodes["y"]["fn"].logits).log_prob(data[1])
    prior = dist.Normal(0.0, 1.0).log_prob(trace.nodes["u"]["value"])
    assert_close(trace.log_prob_sum(), prior.sum() + (likelihood * factor).sum())


def test_a_guide_with_another_subsampling_size_is_refused_after_any_batch():
    model = Effects()
    of_layer, x, y = guides.for_model(model), torch.randn(20, 4, 8), torch.randn(20)

    def guide(x, y=None):
        of_layer(x, y)
        with pyro.plate("data", len(x)):
            pyro.sample("effect", dist.Normal(torch.zeros(len(x)), 1.0))

    loss = ELBOLoss(model, Program(guide))
    assert loss(x, y).isfinite()  # the whole data set: both count once
    with pytest.raises(
        ValueError, match=r"\(-1, 5, 20\).* in the model and .*\(-1, 5, 5\).* in the guide"
    ):
        loss(x[:5], y[:5])


def plate_of_rows(x, y=None, rows=None):
    return pyro.plate("data", 20, subsample_size=len(x), subsample=rows, dim=-1)


@pytest.mark.parametrize("is_rest", [False, True])
def test_a_plate_has_the_models_rows_or_is_refused(is_rest):
    """An AutoGuide's own plate draws other rows, which a replay would give to the model."""
    x, y, rows = torch.randn(20, 4, 8), torch.randn(20), torch.arange(5, 10)
    for options in ({}, {"create_plates": plate_of_rows}):
        model = Effects()
        auto = functools.partial(AutoNormal, **options)
        loss = ELBOLoss(model, guides.for_model(model, rest=auto) if is_rest else auto(model))
        if options:
            assert loss(x[rows], y[rows], rows=rows).isfinite()
        else:
            with pytest.raises(ValueError, match="create_plates"):
                loss(x[rows], y[rows], rows=rows)


def test_a_random_effect_of_each_example_trains_with_an_autoguide(data):
    model = Effects()
    model.num_data = N
    guide = guides.for_model(model, rest=AutoNormal)
    y = torch.randn(N)
    losses = steps(model, guide, data[0], y, number=80)
    assert sum(losses[-20:]) < sum(losses[:20])
    options, fresh = TrainOptions(epochs=4, lr=0.05), guides.for_model(model, rest=AutoNormal)
    history = fit(model.eval(), fresh, [(data[0], y)] * 10, options=options, progress=False)
    assert history.epochs[-1]["train_loss"] < history.epochs[0]["train_loss"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_of_a_stochastic_layer_is_refused(use_reentrant):
    original, _ = vit(["softmax", KEP], depth=2)
    x, y = torch.randn(N, 1, 4, 4, requires_grad=True), torch.arange(N) % 3
    gradients = []
    for number in (None, 0, 1):
        model = copy.deepcopy(original)
        if number is not None:
            block = model.network.blocks[number]
            block.forward = functools.partial(
                torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=use_reentrant
            )
        torch.manual_seed(1)
        loss = ELBOLoss(model, guides.for_model(model))(x, y)
        if number == 1:
            with pytest.raises(RuntimeError, match="gradient checkpointing"):
                loss.backward()
        else:
            loss.backward()
            gradients.append(model.network.embed.weight.grad)
    assert_close(*gradients)  # of blocks without sites it is right


def test_a_hyperparameter_may_be_a_scalar_and_shared_by_layers(data):
    class Scalar(priors.Hierarchical):
        def forward(self, scale, event_dim=None):
            factor = self.sample("factor", dist.HalfNormal(torch.tensor(1.0)))
            return priors.at(
                priors.normal, scale * factor[..., None, None, None], event_dim or scale.dim()
            )

    model = classifier(KEPSVGPAttention(8, 2, rank=2, prior=Scalar()))
    guide = guides.for_model(model)
    assert guide.sites == ("network.0.prior.factor", "network.0.u")
    losses = steps(model, guide, *data, number=30)
    assert sum(losses[-10:]) < sum(losses[:10])
    pyro.clear_param_store()

    class Shared(Own):
        def __init__(self):
            super().__init__(
                *(KEPSVGPAttention(8, 2, rank=2, prior=self.prior, eta=0.0) for _ in range(2))
            )
            self.factor = PyroSample(dist.HalfNormal(torch.tensor(1.0)))

        def prior(self, scale):
            return priors.normal(scale * self.factor)

    model, sites = Shared(), ("factor", "layers.0.u", "layers.1.u")
    trace = poutine.trace(model).get_trace(*data)
    factor, *values = (trace.nodes[name]["value"] for name in sites)
    density = dist.Normal(0, factor).log_prob(torch.stack(values)).sum() + dist.HalfNormal(
        1.0
    ).log_prob(factor)
    assert_close(trace.log_prob_sum() - trace.nodes["y"]["log_prob_sum"], density)
    guide = guides.for_model(model)
    assert guide.sites == sites
    kinds = (Trace_ELBO, TraceMeanField_ELBO, elbos.TraceMeanField_ELBO)
    elbos.assert_agree(*(elbos.losses(kind, model, guide, *data, number=100) for kind in kinds))
    model.num_data = N
    history = fit(model, guide, [data], options=TrainOptions(epochs=20, lr=0.05), progress=False)
    assert history.epochs[-1]["train_loss"] < history.epochs[0]["train_loss"]


def test_two_supervised_models_are_parts_of_one_program(data):
    class Pair(PyroModule):
        def __init__(self):
            super().__init__()
            self.a = classifier(KEPSVGPAttention(8, 2, rank=2, eta=0.0))
            self.b = classifier(SGPAttention(8, 2, inducing=3))

        def forward(self, x, y=None, mask=None):
            self.a(x, y)
            self.b(x, y)

    pair = Pair()
    alone = [
        site for part in (pair.a, pair.b) for site in guides.for_model(copy.deepcopy(part)).sites
    ]
    guide = guides.for_model(pair)
    assert guide.sites == ("a.network.0.u", "b.network.0.u") == tuple(alone)
    trace = poutine.trace(pair).get_trace(*data)
    assert {"a.y", "b.y", "b.network.0.g"} < set(trace.nodes)
    losses = steps(local_posteriors(pair), guide, *data, number=60)
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match=r"a\.y, b\.y"):
        predict(pair, guide, data[0])


def test_an_enumerated_site_is_summed_out(data):
    class Mixture(PyroModule):
        num_data = N

        def __init__(self):
            super().__init__()
            self.attention, self.head = KEPSVGPAttention(8, 2, rank=2, eta=0.0), nn.Linear(8, 2)
            name_layers(self)

        def forward(self, x, y=None):
            means = self.head(self.attention(x).mean(-2))
            with pyro.plate("data", len(x), dim=-1):
                z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
                return pyro.sample(
                    "y",
                    dist.Normal(torch.where(z.bool(), means[..., 0], means[..., 1]), 0.5),
                    obs=y,
                )

    model, y = Mixture(), torch.randn(N)
    guide = guides.for_model(model, "delta")
    means = (
        poutine.trace(poutine.replay(model, poutine.trace(guide).get_trace()))
        .get_trace(data[0])
        .nodes
    )
    u = means["attention.u"]["value"]
    with poutine.condition(data={"attention.u": u}):
        f = model.head(model.attention(data[0]).mean(-2))
    parts = dist.Normal(f, 0.5).log_prob(y.unsqueeze(-1)) + torch.tensor([0.3, 0.7]).log()
    expected = -(parts.logsumexp(-1).sum() + dist.Normal(0.0, 1.0).log_prob(u).sum())
    assert_close(ELBOLoss(model, guide, TraceEnum_ELBO(max_plate_nesting=1))(data[0], y), expected)
    options = TrainOptions(epochs=2, lr=0.01, elbo="enum", samples_per="batch")
    assert (
        fit(model, guide, [(data[0], y)] * 3, options=options, progress=False).steps[-1]["loss"]
        < 10
    )


@pytest.mark.parametrize(
    "factory", [KEP, SGPAttention.partial(inducing=3), CGPAttention.partial(noise=0.5)]
)
def test_groups_of_examples_share_u_where_the_layer_is_outside_both_plates(factory):
    attention, head = factory(8, 2), nn.Linear(8, 3)
    x, y = torch.randn(3, 5, 4, 8), torch.randint(3, (3, 5))
    guide, losses = guides.for_model(local_posteriors(attention)), []

    def model(x, y):
        logits = head(attention(x).mean(-2))
        with pyro.plate_stack("examples", y.shape):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    for batch in ((x, y), (x.flatten(0, 1), y.flatten())):
        torch.manual_seed(2)
        losses.append(TraceMeanField_ELBO().loss(local_posteriors(model), guide, *batch))
    assert_close(*losses)


TRANSFORMED = (
    "kep-svgp",
    "kep-svgp-svd",
    "kep-svgp-concat",
    "softmax",
    "kernel",
    "sgpa",
    "sgpa-standard",
)
TRANSFORMED += ("cgp", "cgp-collapsed-mean", "sparse-cgp", "anchored", "rff-gpa", "rff-cgp")


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_layers_under_the_transforms_of_torch_func(name):
    """vmap over examples, forward derivatives and Hessians; softmax attention's fused kernel has no
    forward ones."""
    layer, x = LAYERS[name](8, 2), torch.randn(3, 4, 8)

    def output(x):
        with at_mean(), sdpa_kernel(SDPBackend.MATH):
            return layer(x)

    def total(x):
        return output(x[None]).square().sum()

    assert_close(torch.func.vmap(lambda example: output(example[None])[0])(x), output(x))
    assert_close(
        torch.func.jacfwd(output)(x[:1]), torch.autograd.functional.jacobian(output, x[:1])
    )
    assert_close(torch.func.hessian(total)(x[0]), torch.autograd.functional.hessian(total, x[0]))


def test_a_mixture_is_the_guide_of_u(data):
    class Mixture(nn.Module):
        def __init__(self, prior):
            super().__init__()
            self.locs = nn.Parameter(torch.tensor([[-2.0], [2.0]]).expand(2, 4).clone())
            self.shape = prior.event_shape

        def forward(self, prior):
            base = dist.MixtureOfDiagNormals(self.locs, torch.full((2, 4), 0.1), torch.zeros(2))
            return dist.TransformedDistribution(
                base, [dist.transforms.ReshapeTransform((4,), self.shape)]
            )

    model = classifier(KEPSVGPAttention(8, 1, rank=2))
    guide = guides.for_model(model, Mixture)
    shared = elbos.losses(Trace_ELBO, model, guide, *data, number=400)
    with draws(4):
        elbos.assert_agree(shared, elbos.losses(elbos.Trace_ELBO, model, guide, *data))
    with draws(4000):
        u = guide()["network.0.u"].flatten(1)
    assert_close(u.sign().abs().sum(-1), torch.full((4000,), 4.0))
    assert (
        (u.mean(-1) > 0).double().mean() - 0.5
    ).abs() < 0.05  # both components, each draw from one of them
    assert (u.sign().sum(-1).abs() == 4).all()
    assert predict(model, guide, data[0], num_samples=20).probs.shape == (N, 3)


def test_the_library_registers_nothing_for_the_classes_of_others():
    own = [
        kinds
        for kinds, function in kl._KL_REGISTRY.items()
        if function.__module__.startswith("probattn")
    ]
    assert own
    assert all(any(kind.__module__.startswith("probattn") for kind in kinds) for kinds in own)
    assert not any(
        handler.__module__.startswith("probattn")
        for handler in integrator._EXCEPTION_HANDLERS.values()
    )
