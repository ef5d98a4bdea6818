"""Programs as Pyro users write them around layers, with values from independent calculations in float64."""

import copy
import functools
import warnings

import pyro
import pyro.distributions as dist
import pyro.ops.integrator as integrator
import pyro.poutine as poutine
import pytest
import torch
from attention_layers import LAYERS
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal, AutoNormalMessenger
from pyro.infer.autoguide.initialization import init_to_mean
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributions import kl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    SGPAttention,
    SoftmaxAttention,
    draws,
    guides,
    local_posteriors,
    name_layers,
    priors,
)
from probattn.draws import at_mean
from probattn.inference import ELBOLoss, TrainOptions, fit, predict, refit_guide
from probattn.models import Classifier, ViT

N = 6
Adam = pyro.optim.Adam


@pytest.fixture(autouse=True)
def double():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


@pytest.fixture
def data():
    return torch.randn(N, 4, 8), torch.arange(N) % 3


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


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


def classifier(*layers, num_data=N):
    return Classifier(nn.Sequential(*layers, Pool(), nn.Linear(8, 3)), num_data=num_data)


def steps(model, guide, x, y, *, elbo=TraceMeanField_ELBO, number=3, lr=0.05):
    svi = SVI(model, guide, Adam({"lr": lr}), elbo())
    return [svi.step(x, y) for _ in range(number)]


@pytest.mark.parametrize("kind", ["mask", "scale"])
def test_masks_and_scales_of_single_examples_leave_the_density_of_u_alone(data, kind):
    attention, head = KEPSVGPAttention(8, 2, rank=2, eta=0.0), nn.Linear(8, 3)
    present, weights = torch.tensor([1, 1, 0, 1, 0, 0]).bool(), torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 3.0])
    handler = poutine.mask(mask=present) if kind == "mask" else poutine.scale(scale=weights)

    def model(x, y):
        with pyro.plate("data", N), handler:
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    trace = poutine.trace(model).get_trace(*data)
    likelihood = dist.Categorical(logits=trace.nodes["y"]["fn"].logits).log_prob(data[1])
    expected = dist.Normal(0.0, 1.0).log_prob(trace.nodes["u"]["value"]).sum()
    expected = expected + (likelihood * (present if kind == "mask" else weights)).sum()
    assert_close(trace.log_prob_sum(), expected)


def test_nuts_under_missing_labels_has_the_exact_standard_deviation():
    """y_n ~ N(w_n · u, σ²) for the labels that are there: a Gaussian posterior of u."""
    attention = KEPSVGPAttention(4, 1, rank=2, eta=0.0).requires_grad_(False)
    x, present = torch.randn(12, 3, 4), torch.arange(12) < 4

    def model(x, y):
        with pyro.plate("data", 12), poutine.mask(mask=present):
            pyro.sample("y", dist.Normal(3 * attention(x).mean((-2, -1)), 0.4), obs=y)

    def mean(u):
        with poutine.condition(data={"u": u.view(1, 2, 2)}):
            return 3 * attention(x).mean((-2, -1))

    features = torch.autograd.functional.jacobian(mean, torch.zeros(4))[present]
    exact = torch.linalg.inv(torch.eye(4) + features.T @ features / 0.4**2).diagonal().sqrt()
    chain = MCMC(NUTS(model, max_tree_depth=3), num_samples=200, warmup_steps=60, disable_progbar=True)
    chain.run(x, torch.randn(12))
    found = chain.get_samples()["u"].flatten(1).std(0)
    assert ((found / exact - 1).abs() < 0.3).all()


def test_predictive_draws_local_sites_from_their_posteriors(data):
    """The mean of g under its posterior depends on the input; under its prior it is 0."""
    attention = SGPAttention(8, 2, inducing=3).requires_grad_(False)

    def model(x, y=None):
        mean = 3 * attention(x).mean((-2, -1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.01), obs=y)

    program = local_posteriors(model)
    guide = AutoNormal(program, init_scale=1e-4)
    guide(data[0], torch.zeros(N))
    found = Predictive(program, guide=guide, num_samples=600)(data[0])["y"]
    with at_mean(), poutine.condition(data=guide.median(data[0])):
        expected = poutine.trace(model).get_trace(data[0]).nodes["y"]["fn"].mean.detach()
    assert ((found.mean(0) - expected).abs() < 5 * found.std(0) / 600**0.5 + 1e-3).all()
    assert expected.std() > 10 * found.std(0).mean() / 600**0.5


def test_training_goes_on_from_a_loaded_parameter_store(data, tmp_path):
    """The new modules take what the store holds: guide, Λ and weights, in a model of the library and in a user's."""

    class Own(PyroModule):
        def __init__(self):
            super().__init__()
            self.attention, self.head = KEPSVGPAttention(8, 2, rank=2), nn.Linear(8, 3)
            name_layers(self)

        def forward(self, x, y):
            logits = self.head(self.attention(x).mean(-2))
            with pyro.plate("data", N):
                pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    def of_library():
        return classifier(KEPSVGPAttention(8, 2, rank=2))

    def average(model, guide):
        return torch.tensor([TraceMeanField_ELBO().loss(model, guide, *data) for _ in range(20)]).mean()

    for make in (of_library, Own):
        pyro.clear_param_store()
        model = make()
        guide = guides.for_model(model)
        steps(model, guide, *data, number=100)
        before = average(model, guide)
        pyro.get_param_store().save(tmp_path / "store")
        pyro.clear_param_store()
        pyro.get_param_store().load(tmp_path / "store")
        model = make()
        guide = guides.for_model(model)
        layer = next(module for module in model.modules() if isinstance(module, KEPSVGPAttention))
        unrelated = average(model, guide)
        steps(model, guide, *data, number=1, lr=1e-9)
        attention = [name for name in pyro.get_param_store() if name.endswith("log_scale")]
        assert_close(layer.log_scale, pyro.param(attention[0]).detach().requires_grad_(), check_device=False)
        if make is of_library:  # a user's own nn.Linear follows as far as Pyro makes it follow
            after = average(model, guide)
            assert abs(after - before) < 0.2 * (unrelated - before)
        steps(model, guide, *data, number=20)


def test_a_guide_with_another_subsampling_size_is_refused_after_any_batch(data):
    model = Effects()
    of_layer = guides.for_model(model)

    class Own(nn.Module):
        def forward(self, x, y=None):
            of_layer(x, y)
            with pyro.plate("data", len(x)):
                pyro.sample("effect", dist.Normal(torch.zeros(len(x)), 1.0))

    x, y = torch.randn(20, 4, 8), torch.randn(20)
    loss = ELBOLoss(model, Own())
    assert loss(x, y).isfinite()  # the whole data set: both count once
    with pytest.raises(ValueError, match=r"\(-1, 5, 20\).* in the model and .*\(-1, 5, 5\).* in the guide"):
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
    history = fit(model.eval(), guide, [(data[0], y)] * 5, options=TrainOptions(epochs=4, lr=0.02), progress=False)
    assert history.epochs[-1]["train_loss"] < history.epochs[0]["train_loss"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_of_a_stochastic_layer_is_refused(use_reentrant):
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 2, "heads": 2}
    network = ViT(**sizes, mlp_dim=16, attention=[SoftmaxAttention, KEPSVGPAttention.partial(rank=2)])

    class Checkpointed(nn.Module):
        def __init__(self, blocks):
            super().__init__()
            self.network, self.blocks = network, blocks

        def forward(self, x):
            tokens = self.network.tokens(x)
            for number, block in enumerate(self.network.blocks):
                if number in self.blocks:
                    tokens = torch.utils.checkpoint.checkpoint(block, tokens, use_reentrant=use_reentrant)
                else:
                    tokens = block(tokens)
            return self.network.head(self.network.norm(tokens.mean(-2)))

    x, y = torch.randn(N, 1, 8, 8, requires_grad=True), torch.arange(N) % 3
    gradients = []
    for blocks in ((), (0,), (1,)):
        model = Classifier(Checkpointed(blocks), num_data=N)
        torch.manual_seed(1)
        guide = guides.for_model(model)
        loss = ELBOLoss(model, guide)(x, y)
        if blocks == (1,):
            with pytest.raises(RuntimeError, match="gradient checkpointing"):
                loss.backward()
        else:
            network.zero_grad()
            loss.backward()
            gradients.append(network.embed.weight.grad)
    assert_close(*gradients)  # of blocks without sites it is right


def test_a_hyperparameter_may_be_a_scalar_and_shared_by_layers(data):
    class Scalar(priors.Hierarchical):
        def forward(self, scale, event_dim=None):
            factor = self.sample("factor", dist.HalfNormal(torch.tensor(1.0)))
            return priors.at(priors.normal, scale * factor[..., None, None, None], event_dim or scale.dim())

    model = classifier(KEPSVGPAttention(8, 2, rank=2, prior=Scalar()))
    guide = guides.for_model(model)
    assert guide.sites == ("network.0.prior.factor", "network.0.u")
    losses = steps(model, guide, *data, number=60)
    assert sum(losses[-10:]) < sum(losses[:10])
    pyro.clear_param_store()

    class Shared(PyroModule):
        def __init__(self):
            super().__init__()
            self.factor = PyroSample(dist.HalfNormal(torch.tensor(1.0)))
            layers = [KEPSVGPAttention(8, 2, rank=2, prior=self.prior, eta=0.0) for _ in range(2)]
            self.first, self.second = layers
            self.head = nn.Linear(8, 3)
            name_layers(self)

        def prior(self, scale):
            return priors.normal(scale * self.factor)

        def forward(self, x, y):
            logits = self.head(self.second(self.first(x)).mean(-2))
            with pyro.plate("data", N):
                pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    model = Shared()
    trace = poutine.trace(model).get_trace(*data)
    factor, u, v = (trace.nodes[name]["value"] for name in ("factor", "first.u", "second.u"))
    expected = dist.HalfNormal(1.0).log_prob(factor) + sum(
        dist.Normal(0, factor).log_prob(each).sum() for each in (u, v)
    )
    assert_close(trace.log_prob_sum() - trace.nodes["y"]["log_prob_sum"], expected)
    guide = guides.for_model(model)
    assert guide.sites == ("factor", "first.u", "second.u")
    values = {
        kind: torch.tensor([kind().loss(model, guide, *data) for _ in range(300)])
        for kind in (Trace_ELBO, TraceMeanField_ELBO)
    }
    first, second = values.values()
    assert (first.mean() - second.mean()).abs() < 5 * ((first.var() + second.var()) / 300).sqrt()


def test_two_supervised_models_are_parts_of_one_program(data):
    class Pair(PyroModule):
        def __init__(self):
            super().__init__()
            self.a = classifier(KEPSVGPAttention(8, 2, rank=2, eta=0.0))
            self.b = classifier(SGPAttention(8, 2, inducing=3))

        def forward(self, x, y):
            self.a(x, y)
            self.b(x, y)

    pair = Pair()
    alone = [guides.for_model(copy.deepcopy(part)).sites for part in (pair.a, pair.b)]
    guide = guides.for_model(pair)
    assert guide.sites == ("a.network.0.u", "b.network.0.u") == tuple(site for sites in alone for site in sites)
    trace = poutine.trace(pair).get_trace(*data)
    assert {"a.y", "b.y", "b.network.0.g"} < set(trace.nodes)
    losses = steps(local_posteriors(pair), guide, *data, number=60)
    assert losses[-1] < losses[0]


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
                return pyro.sample("y", dist.Normal(torch.where(z.bool(), means[..., 0], means[..., 1]), 0.5), obs=y)

    model, y = Mixture(), torch.randn(N)
    guide = guides.for_model(model, "delta")
    means = poutine.trace(poutine.replay(model, poutine.trace(guide).get_trace())).get_trace(data[0]).nodes
    u = means["attention.u"]["value"]
    with poutine.condition(data={"attention.u": u}):
        f = model.head(model.attention(data[0]).mean(-2))
    parts = dist.Normal(f, 0.5).log_prob(y.unsqueeze(-1)) + torch.tensor([0.3, 0.7]).log()
    expected = -(parts.logsumexp(-1).sum() + dist.Normal(0.0, 1.0).log_prob(u).sum())
    assert_close(ELBOLoss(model, guide, TraceEnum_ELBO(max_plate_nesting=1))(data[0], y), expected)
    options = TrainOptions(epochs=2, lr=0.01, elbo="enum", samples_per="batch")
    assert fit(model, guide, [(data[0], y)] * 3, options=options, progress=False).steps[-1]["loss"] < 10


def test_a_guide_is_fitted_below_bayesian_weights(data, caplog):
    linear = PyroModule[nn.Linear](8, 8)
    linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([8, 8]).to_event(2))
    layers = linear, KEPSVGPAttention(8, 2, rank=2), Pool(), nn.Linear(8, 3)
    model = Classifier(PyroModule[nn.Sequential](*layers), num_data=N)
    guide = guides.for_model(model, rest=AutoNormal)
    refit = refit_guide(model, guide, 20 * [data], epochs=3, num_samples=2)
    assert refit.elbo_after > refit.elbo_before


def test_guides_of_other_kinds_combine_with_layers(data):
    model = classifier(KEPSVGPAttention(8, 2, rank=2), KEPSVGPAttention(8, 2, rank=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # frozen parameters
        losses = steps(local_posteriors(model), AutoNormalMessenger(local_posteriors(model)), *data, number=40)
    assert losses[-1] < losses[0]
    pyro.clear_param_store()
    both = AutoGuideList(model)
    both.append(guides.for_model(poutine.block(model, hide=["network.0.u"])))
    both.append(AutoNormal(poutine.block(model, expose=["network.0.u"])))
    losses = steps(model, both, *data, elbo=Trace_ELBO, number=40)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "factory",
    [KEPSVGPAttention.partial(rank=2), SGPAttention.partial(inducing=3), CGPAttention.partial(noise=0.5)],
    ids=["KEP-SVGP", "SGPA", "CGP"],
)
def test_groups_of_examples_share_u_where_the_layer_is_outside_both_plates(factory):
    attention, head = factory(8, 2), nn.Linear(8, 3)
    x, y = torch.randn(3, 5, 4, 8), torch.randint(3, (3, 5))
    guide = guides.for_model(attention)

    def grouped(x, y):
        logits = head(attention(x).mean(-2))
        with pyro.plate("groups", 3, dim=-2), pyro.plate("examples", 5, dim=-1):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    def flat(x, y):
        logits = head(attention(x).mean(-2))
        with pyro.plate("examples", 15):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    losses = []
    for model, batch in ((grouped, (x, y)), (flat, (x.flatten(0, 1), y.flatten()))):
        torch.manual_seed(2)
        losses.append(TraceMeanField_ELBO().loss(local_posteriors(model), guide, *batch))
    assert_close(*losses)


TRANSFORMED = ("kep-svgp", "kep-svgp-svd", "kep-svgp-concat", "softmax", "kernel", "sgpa", "sgpa-standard")
TRANSFORMED += ("cgp", "cgp-collapsed-mean", "sparse-cgp", "anchored")


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_layers_under_the_transforms_of_torch_func(name):
    """vmap over examples, forward derivatives and Hessians; softmax attention's fused kernel has no forward ones."""
    layer, x = LAYERS[name](8, 2), torch.randn(3, 4, 8)

    def output(x):
        with at_mean(), sdpa_kernel(SDPBackend.MATH):
            return layer(x)

    def total(x):
        return output(x[None]).square().sum()

    assert_close(torch.func.vmap(lambda example: output(example[None])[0])(x), output(x))
    assert_close(torch.func.jacfwd(output)(x[:1]), torch.autograd.functional.jacobian(output, x[:1]))
    assert_close(torch.func.hessian(total)(x[0]), torch.autograd.functional.hessian(total, x[0]))


def test_a_mixture_is_the_guide_of_u(data):
    class Mixture(nn.Module):
        def __init__(self, prior):
            super().__init__()
            self.locs = nn.Parameter(torch.tensor([[-2.0], [2.0]]).expand(2, 4).clone())
            self.shape = prior.event_shape

        def forward(self, prior):
            base = dist.MixtureOfDiagNormals(self.locs, torch.full((2, 4), 0.1), torch.zeros(2))
            return dist.TransformedDistribution(base, [dist.transforms.ReshapeTransform((4,), self.shape)])

    model = classifier(KEPSVGPAttention(8, 1, rank=2))
    guide = guides.for_model(model, Mixture)
    shared = torch.tensor([Trace_ELBO().loss(model, guide, *data) for _ in range(400)])
    with draws(4):
        together = torch.tensor([ELBOLoss(model, guide, Trace_ELBO())(*data).item() for _ in range(100)])
    assert (shared.mean() - together.mean()).abs() < 5 * (shared.var() / 400 + together.var() / 100).sqrt()
    with draws(4000):
        u = guide()["network.0.u"].flatten(1)
    assert_close(u.sign().abs().sum(-1), torch.full((4000,), 4.0))
    assert ((u.mean(-1) > 0).double().mean() - 0.5).abs() < 0.05  # both components, each draw from one of them
    assert (u.sign().sum(-1).abs() == 4).all()
    assert predict(model, guide, data[0], num_samples=20).probs.shape == (N, 3)


def test_tensors_whose_entries_share_memory_train_and_load(data, tmp_path):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = KEPSVGPAttention(8, 2, rank=2), nn.Linear(8, 3)
            self.register_buffer("shift", torch.ones(1).expand(8))

        def forward(self, x):
            return self.head(self.attention(x + self.shift).mean(-2))

    model = Classifier(Shifted(), num_data=N)
    guide = AutoNormal(model, init_loc_fn=init_to_mean)
    options = TrainOptions(epochs=3, lr=0.05)
    fit(model, guide, [data] * 3, [data], options=options, out=tmp_path / "run", progress=False)
    (loc,) = (parameter for name, parameter in guide.named_parameters() if name.startswith("locs"))
    assert len(loc.unique()) == loc.numel()  # the entries have moved each on its own


def test_the_library_registers_nothing_for_the_classes_of_others():
    own = [kinds for kinds, function in kl._KL_REGISTRY.items() if function.__module__.startswith("probattn")]
    assert own
    assert all(any(kind.__module__.startswith("probattn") for kind in kinds) for kinds in own)
    assert not any(handler.__module__.startswith("probattn") for handler in integrator._EXCEPTION_HANDLERS.values())
