"""The posterior predictive against replayed draws and closed forms."""

import math
import weakref

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides, local_sites
from probattn.functional import jitter
from probattn.functional.errors import NumericalError
from probattn.handlers import at_mean
from probattn.inference import Prediction, predict
from probattn.inference.prediction import predict as prediction
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical

F64 = torch.float64


class Network(PyroModule):
    def __init__(self, outputs=3, *, attention=KEPSVGPAttention.partial(rank=2), pool=True) -> None:  # noqa: B008
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layers = PyroModule[nn.ModuleList]([attention(4, 2), attention(4, 2)])
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, outputs)
        self.pool = pool

    def forward(self, x, mask=None):
        x = self.embed(x)
        for layer in self.layers:
            x = x + self.dropout(layer(x, mask))
        return self.head(x.mean(-2) if self.pool else x)


def build(likelihood=None, family="full", **options):
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=9).double()
    return model, guides.for_model(model, family)


@pytest.fixture
def recorded(monkeypatch):
    """The trace of the latent sites of every predict."""
    traces, original = [], prediction._global_part

    def record(*args):
        traces.append(original(*args))
        return traces[-1]

    monkeypatch.setattr(prediction, "_global_part", record)
    return traces


def outputs_by_hand(model, trace, x, num_samples, mask=None):
    """Outputs of each draw and each example alone ``(S, n, ...)``."""
    model.eval()
    rows = []
    for s in range(num_samples):
        fixed = {name: node["value"][s, 0] for name, node in trace.nodes.items() if name.endswith(".u")}
        assert len(fixed) == 2
        network = poutine.condition(model.network, data=fixed)
        each = [network(x[i : i + 1], None if mask is None else mask[i : i + 1])[0] for i in range(len(x))]
        rows.append(torch.stack(each))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("num_samples", [1, 2, 4, 7])
@pytest.mark.parametrize("batch", [1, 4])
def test_probs_are_the_mean_of_each_draws_softmax(recorded, num_samples, batch):
    model, guide = build()
    x = torch.randn(batch, 5, 3, dtype=F64)
    result = predict(model, guide, x, num_samples=num_samples, keep_draws=True)
    probs = outputs_by_hand(model, recorded[0], x, num_samples).softmax(-1)
    torch.testing.assert_close(result.draws, probs)
    torch.testing.assert_close(result.probs, probs.mean(0))
    assert num_samples == 1 or not torch.equal(probs[0], probs[1])


def test_a_prediction_of_one_batch_as_many_draws_as_examples_does_not_pair_them(recorded):
    model, guide = build()
    x = torch.randn(4, 5, 3, dtype=F64)
    same = predict(model, guide, x[:1].expand(4, 5, 3), num_samples=4)
    torch.testing.assert_close(same.probs, same.probs[:1].expand(4, 3))


def test_entropies_and_mutual_information_by_hand(recorded):
    model, guide = build()
    with torch.no_grad():
        model.network.head.weight.mul_(10)
    x = torch.randn(4, 5, 3, dtype=F64)
    result = predict(model, guide, x, num_samples=6)
    probs = outputs_by_hand(model, recorded[0], x, 6).softmax(-1)
    for i in range(4):
        mean = [sum(probs[s, i, c].item() for s in range(6)) / 6 for c in range(3)]
        entropy = -sum(p * math.log(p) for p in mean)
        each = [-sum(p * math.log(p) for p in probs[s, i].tolist()) for s in range(6)]
        assert math.isclose(result.entropy[i], entropy, rel_tol=1e-9)
        assert math.isclose(result.expected_entropy[i], sum(each) / 6, rel_tol=1e-9)
        assert math.isclose(result.mutual_information[i], entropy - sum(each) / 6, rel_tol=1e-6)
    assert (result.mutual_information > 1e-4).all()


def test_information_of_certain_and_of_disputed_draws():
    certain = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])
    disputed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    for probs, entropy in ((certain, 0.0), (disputed, math.log(2))):
        result = Prediction(probs=probs.mean(0), expected_entropy=torch.special.entr(probs).sum(-1).mean(0))
        assert math.isclose(result.entropy.item(), entropy, abs_tol=1e-7)
        assert math.isclose(result.mutual_information.item(), entropy, abs_tol=1e-7)


def test_log_prob_is_the_log_of_the_mean_probability(recorded):
    model, guide = build()
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.tensor([0, 2, 1, 1])
    result = predict(model, guide, x, num_samples=5)
    probs = outputs_by_hand(model, recorded[0], x, 5).softmax(-1)
    expected = [math.log(sum(probs[s, i, y[i]].item() for s in range(5)) / 5) for i in range(4)]
    torch.testing.assert_close(result.log_prob(y), torch.tensor(expected, dtype=F64))
    torch.testing.assert_close(result.log_prob(y.int()), torch.tensor(expected, dtype=F64))


@pytest.mark.parametrize("auto", [None, AutoNormal, AutoMultivariateNormal])
def test_all_batches_of_a_loader_share_the_draws(auto):
    model, guide = build()
    x, y = torch.randn(8, 5, 3, dtype=F64), torch.randint(3, (8,))
    if auto:
        guide = auto(model)
        guides.materialise(guide, (x, y))
        guide.double()
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    assert [len(batch[0]) for batch in loader] == [3, 3, 2]
    torch.manual_seed(5)
    whole = predict(model, guide, x, num_samples=3, keep_draws=True)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    batches = list(loader)
    torch.set_rng_state(state)
    parts = predict(model, guide, batches, num_samples=3, keep_draws=True)
    for field in ("probs", "draws", "expected_entropy"):
        torch.testing.assert_close(getattr(parts, field), getattr(whole, field), msg=field)
    assert torch.equal(parts.labels, y)
    assert whole.labels is None


def test_a_network_without_latent_sites_predicts_its_softmax():
    model, guide = build(attention=SoftmaxAttention)
    x = torch.randn(4, 5, 3, dtype=F64)
    for given in (guide, None):
        result = predict(model, given, x, num_samples=3, keep_draws=True)
        model.eval()
        expected = model.network(x).softmax(-1)
        torch.testing.assert_close(result.probs, expected)
        torch.testing.assert_close(result.draws, expected.expand(3, 4, 3))
        torch.testing.assert_close(result.mutual_information, torch.zeros(4, dtype=F64), atol=1e-12, rtol=0)


def test_without_a_guide_draws_come_from_the_prior(recorded):
    model, _ = build()
    with torch.no_grad():
        for layer in model.network.layers:
            layer.scale_unconstrained.copy_(torch.tensor([[0.1, 5.0], [1.0, 0.5]]).log())
    x = torch.randn(2, 5, 3, dtype=F64)
    result = predict(model, None, x, num_samples=6)
    torch.testing.assert_close(result.probs, outputs_by_hand(model, recorded[0], x, 6).softmax(-1).mean(0))
    predict(model, None, x, num_samples=4000)
    u = recorded[2].nodes["network.layers.0.u"]["value"][:, 0]
    assert u.shape == (4000, 2, 2, 2)
    lam = torch.tensor([[0.1, 5.0], [1.0, 0.5]], dtype=F64)[:, None, :].expand(2, 2, 2)
    torch.testing.assert_close(u.std(0), lam, rtol=0.06, atol=0)
    assert (u.mean(0).abs() < 4.5 * lam / 4000**0.5).all()


def test_regression_moments_and_log_prob_by_hand(recorded):
    model, guide = build(Gaussian(0.4), outputs=2)
    x, y = torch.randn(5, 4, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
    result = predict(model, guide, [(x[:3], y[:3]), (x[3:], y[3:])], num_samples=6)
    means = outputs_by_hand(model, recorded[0], x, 6)
    mean = means.mean(0)
    torch.testing.assert_close(result.mean, mean)
    total = 0.4**2 + (means - mean).square().mean(0)
    torch.testing.assert_close(result.variance, total, rtol=1e-6, atol=0)
    for i in range(5):
        each = [
            math.prod(
                math.exp(-0.5 * ((y[i, t] - means[s, i, t]) / 0.4) ** 2) / (0.4 * math.sqrt(2 * math.pi))
                for t in range(2)
            )
            for s in range(6)
        ]
        assert math.isclose(result.log_prob(y)[i], math.log(sum(each) / 6), rel_tol=1e-5)
    assert result.probs is None


def test_regression_labels_that_would_broadcast_are_refused():
    model, guide = build(Gaussian(), outputs=1)
    x = torch.randn(5, 4, 3, dtype=F64)
    result = predict(model, guide, [x[:3], x[3:]])
    assert result.log_prob(torch.zeros(5, 1)).shape == (5,)
    for wrong in (torch.zeros(5), torch.zeros(4, 1), torch.zeros(5, 5)):
        with pytest.raises(ValueError, match=r"labels of shape \(5, 1\)"):
            result.log_prob(wrong)


def test_several_labels_have_the_mean_of_their_probabilities(recorded):
    model, guide = build(Bernoulli())
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randint(2, (4, 3)).to(F64)
    result = predict(model, guide, x, num_samples=5)
    p = outputs_by_hand(model, recorded[0], x, 5).sigmoid()
    torch.testing.assert_close(result.mean, p.mean(0))
    torch.testing.assert_close(result.variance, p.mean(0) * (1 - p.mean(0)))
    joint = torch.where(y == 1, p, 1 - p).prod(-1).mean(0).log()
    torch.testing.assert_close(result.log_prob(y), joint)


@pytest.mark.parametrize("attention", [KEPSVGPAttention.partial(rank=2), SoftmaxAttention])
def test_labels_of_tokens_count_jointly_and_padding_nothing(recorded, attention):
    model, guide = build(TokenCategorical(), pool=False, attention=attention)
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randint(3, (4, 5))
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    result = predict(model, guide, [(x[:3], y[:3], mask[:3]), (x[3:], y[3:], mask[3:])], num_samples=6)
    if attention is SoftmaxAttention:
        model.eval()
        probs = model.network(x, mask).softmax(-1).expand(6, 4, 5, 3)
    else:
        probs = outputs_by_hand(model, recorded[0], x, 6, mask).softmax(-1)
    torch.testing.assert_close(result.probs[mask], probs.mean(0)[mask])
    picked = probs.gather(-1, y.expand(6, 4, 5).unsqueeze(-1)).squeeze(-1)
    joint = torch.where(mask, picked, 1.0).prod(-1).mean(0).log()
    torch.testing.assert_close(result.log_prob(y), joint)
    torch.testing.assert_close(result.log_prob(torch.where(mask, y, 0)), joint)


def test_train_and_eval_modes_come_back_module_by_module():
    model, guide = build()
    model.train()
    model.network.head.eval()
    guide.eval()
    modes = [(m, m.training) for part in (model, guide) for m in part.modules()]
    x = torch.randn(2, 5, 3, dtype=F64)
    predict(model, guide, x)
    assert all(m.training == mode for m, mode in modes)
    seen = []
    model.network.dropout.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    for broken in ([(x,), (x[..., :2],)], [x, x * math.nan], []):
        with pytest.raises((RuntimeError, ValueError)):
            predict(model, guide, broken)
        assert all(m.training == mode for m, mode in modes)
    assert seen
    assert not any(seen)
    assert torch.is_grad_enabled()


def test_no_gradient_is_kept():
    model, guide = build()
    assert not predict(model, guide, torch.randn(2, 5, 3, dtype=F64), keep_draws=True).draws.requires_grad


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_inputs_are_refused_with_their_batch(value):
    model, guide = build()
    x = torch.randn(2, 5, 3, dtype=F64)
    broken = x.clone()
    broken[1, 2, 0] = value
    with pytest.raises(ValueError, match="NaN or Inf in the inputs of batch 2"):
        predict(model, guide, [x, x, broken])


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(), Bernoulli(), TokenCategorical()])
def test_broken_weights_are_named_with_the_batch(likelihood):
    model, guide = build(likelihood, pool=not isinstance(likelihood, TokenCategorical))
    with torch.no_grad():
        model.network.head.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"outputs of batch 0.*network\.head\.weight of the model"):
        predict(model, guide, torch.randn(2, 5, 3, dtype=F64))


def test_outputs_that_overflow_from_finite_weights_are_refused_with_the_batch():
    model, guide = build()
    with torch.no_grad():
        model.network.embed.weight.fill_(1e200)
        model.network.head.weight.fill_(1e200)
    x = torch.randn(2, 5, 3, dtype=F64)
    with pytest.raises(ValueError, match="NaN or Inf in the outputs of batch 0, Expected parameter"):
        predict(model, guide, [(x, torch.tensor([0, 1]))])


@pytest.mark.parametrize("data", [[], DataLoader(TensorDataset(torch.zeros(0, 5, 3)), batch_size=2)])
def test_no_data_is_an_error(data):
    model, guide = build()
    with pytest.raises(ValueError, match="no data to predict"):
        predict(model, guide, data)


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_draws_below_one_is_refused(number):
    model, guide = build()
    with pytest.raises(ValueError, match="positive number"):
        predict(model, guide, torch.randn(2, 5, 3, dtype=F64), num_samples=number)


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian()])
def test_nothing_of_earlier_batches_is_kept_but_results(likelihood):
    model, guide = build(likelihood)
    alive = []

    def batches():
        inputs = []
        for _ in range(5):
            x = torch.randn(2, 5, 3, dtype=F64)
            inputs.append(weakref.ref(x))
            yield x, torch.zeros(2, dtype=torch.long)
            del x
            alive.append(sum(ref() is not None for ref in inputs))

    predict(model, guide, batches(), num_samples=2)
    assert max(alive) <= 1


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian()])
def test_an_auto_guide_without_parameters_is_made_with_labels_or_refused(likelihood):
    model, _ = build(likelihood)
    model.float()
    x = torch.randn(4, 5, 3)
    y = torch.randint(3, (4,)) if isinstance(likelihood, Categorical) else torch.randn(4, 3)
    guide = AutoNormal(model)
    with pytest.raises(ValueError, match="materialise"):
        predict(model, guide, x)
    assert list(guide.parameters()) == []
    predict(model, guide, [(x, y)], num_samples=3)
    names = {name.split(".", 1)[1] for name, _ in guide.named_parameters()}
    assert names == {f"network.layers.{i}.u_unconstrained" for i in (0, 1)}
    assert all(parameter.shape == (2, 2, 2) for parameter in guide.parameters())


def test_an_enclosing_handler_does_not_leak_into_the_draws():
    """The draws do not depend on the batch: the first batch's size is not theirs."""
    model, guide = build()
    x = torch.randn(3, 5, 3, dtype=F64)
    with torch.no_grad(), draws(2):
        trace = poutine.trace(guide).get_trace(x)
    assert trace.nodes["network.layers.0.u"]["value"].shape == (2, 1, 2, 2, 2)


def test_pieces_of_a_batch_join_to_what_the_whole_gives(monkeypatch):
    model, guide = build()
    x = torch.randn(7, 5, 3, dtype=F64)
    results = []
    for most in (1000, 9, 4):
        monkeypatch.setattr(prediction, "CPU_EXAMPLE_DRAWS", most)
        torch.manual_seed(0)
        results.append(predict(model, guide, x, num_samples=4, keep_draws=True))
    for other in results[1:]:
        torch.testing.assert_close(other.draws, results[0].draws)
        torch.testing.assert_close(other.expected_entropy, results[0].expected_entropy)


class LocalModel(pyro.nn.PyroModule):
    """A latent that belongs to each example, and one that all share."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, y=None, mask=None):
        shared = pyro.sample("shared", dist.Normal(0.0, 1.0))
        with local_sites(batch=len(x), num_data=8):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x)), 1.0), infer={"local": True})
            return pyro.sample("y", dist.Normal(z + 0 * shared, 1.0), obs=y, infer={"local": True})


class LocalGuide(torch.nn.Module):
    def forward(self, x, y=None, mask=None):
        pyro.sample("shared", dist.Normal(0.0, 1.0))
        with local_sites(batch=len(x), num_data=8):
            pyro.sample("z", dist.Normal(x, 1e-6), infer={"local": True})


def test_local_latents_are_drawn_for_their_own_examples():
    x = torch.arange(8.0)
    result = predict(LocalModel(), LocalGuide(), x.split(4), num_samples=1)
    torch.testing.assert_close(result.mean, x, atol=1e-4, rtol=0)


def test_a_network_that_pools_over_the_batch_is_refused():
    class Wrong(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.attention = KEPSVGPAttention(4, 2, rank=2)

        def forward(self, x):
            return self.attention(x).mean(1)

    model = Supervised(Wrong(), Categorical(), num_data=8)
    with pytest.raises(ValueError, match="index from the right"):
        predict(model, guides.for_model(model), torch.randn(3, 5, 4))


class Amortised(PyroModule):
    """A latent of each example whose prior is N(−3, 1/4) and whose posterior is N(x, 1/100); one that all share."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x, y=None, mask=None):
        shared = pyro.sample("shared", dist.Normal(0.0, 1.0))
        with local_sites(batch=len(x), num_data=8):
            infer = {"local": True, "posterior": dist.Normal(x, 0.1)}
            z = pyro.sample("z", dist.Normal(torch.full((len(x),), -3.0), 0.5), infer=infer)
            return pyro.sample("y", dist.Normal(z + 100 * shared, 0.2), obs=y, infer={"local": True})


class Shared(nn.Module):
    """Knows the shared latent only."""

    def forward(self, x, y=None, mask=None):
        pyro.sample("shared", dist.Normal(1.0, 1e-3))


def test_local_sites_come_from_their_posteriors_with_a_guide_and_from_their_priors_without():
    x, number = torch.arange(8.0), 4000
    result = predict(Amortised(), Shared(), x.split(3), num_samples=number)
    torch.testing.assert_close(result.mean, 100 + x, rtol=0, atol=0.02)
    torch.testing.assert_close(result.variance, torch.full((8,), 0.05 + 0.1**2), rtol=0.1, atol=0.01)

    class Prior(Amortised):
        def forward(self, x, y=None, mask=None):
            with poutine.condition(data={"shared": torch.tensor(1.0)}):
                return super().forward(x, y, mask)

    result = predict(Prior(), None, x.split(3), num_samples=number)
    torch.testing.assert_close(result.mean, torch.full((8,), 97.0), rtol=0, atol=0.05)
    torch.testing.assert_close(result.variance, torch.full((8,), 0.25 + 0.2**2), rtol=0.1, atol=0)


def test_local_draws_differ_between_draws_and_examples_and_at_mean_has_none():
    x = torch.zeros(5)
    means = predict(Amortised(), Shared(), [x[:3], x[3:]], num_samples=4).components
    z = torch.cat([each.mean for each in means], dim=-1)
    assert z.shape == (4, 5)
    assert len(z.unique()) == 20
    with at_mean():
        result = predict(Amortised(), Shared(), torch.arange(5.0), num_samples=3)
    torch.testing.assert_close(result.mean, 100 + torch.arange(5.0))
    torch.testing.assert_close(result.variance, torch.full((5,), 0.2**2))


def test_in_prediction_too_a_guides_own_local_draw_wins():
    class Own(Shared):
        def forward(self, x, y=None, mask=None):
            super().forward(x)
            with local_sites(batch=len(x), num_data=8):
                pyro.sample("z", dist.Normal(x + 50, 1e-4), infer={"local": True})

    x = torch.arange(4.0)
    with at_mean():
        result = predict(Amortised(), Own(), x, num_samples=1)
    torch.testing.assert_close(result.mean, x + 150, rtol=0, atol=1e-2)


@pytest.mark.parametrize("how", ["marginal", "joint"])
@pytest.mark.parametrize("inducing", [2, None])
def test_a_prediction_at_the_mean_is_the_network_at_the_means_of_its_sites(how, inducing):
    layer = SGPAttention.partial(inducing=inducing, draws=how)
    model, guide = build(attention=layer)
    x, mask = torch.randn(3, 5, 3, dtype=F64), torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 5])
    with at_mean():
        result = predict(model, guide, [(x, torch.tensor([0, 1, 2]), mask)], num_samples=2, keep_draws=True)
    model.eval()
    h = model.network.embed(x)
    for i, each in enumerate(model.network.layers):
        data = {}
        if inducing is not None:
            data[f"network.layers.{i}.u"] = guide.get_submodule(f"network.layers.{i}.u").loc
        name = f"network.layers.{i}.g"
        node = poutine.trace(poutine.condition(each, data=data)).get_trace(h, mask).nodes[name]
        data[name] = node["infer"]["posterior"].mean
        h = h + poutine.condition(each, data=data)(h, mask)
    expected = model.network.head(h.mean(-2)).softmax(-1)
    torch.testing.assert_close(result.draws, expected.expand(2, 3, 3))


def test_global_draws_are_shared_by_batches_and_pieces_and_local_ones_are_not(recorded):
    model, guide = build(attention=SGPAttention.partial(inducing=2))
    x = torch.randn(1, 5, 3, dtype=F64).expand(6, 5, 3)
    result = predict(model, guide, x.split(2), num_samples=4, keep_draws=True)
    assert set(recorded[0].nodes) == {f"network.layers.{i}.u" for i in (0, 1)}
    assert len(result.draws[0, :, 0].unique()) == 6
    with torch.no_grad():
        for layer in model.network.layers:
            layer.query_value.weight.mul_(1e-9)
            layer.kernel.log_variance.fill_(-60)
    result = predict(model, guide, x.split(2), num_samples=4, keep_draws=True)
    torch.testing.assert_close(result.draws, result.draws[:, :1].expand(4, 6, 3), rtol=0, atol=1e-6)


def test_an_auto_guide_of_local_sites_is_refused_by_predict():
    model, _ = build(attention=SGPAttention.partial(inducing=2))
    model.float()
    x = torch.randn(4, 5, 3)
    guide = AutoNormal(model)
    with torch.no_grad():
        guide(x, torch.randint(3, (4,)))
    with pytest.raises(ValueError, match="global_part"):
        predict(model, guide, x)


def test_what_the_numerics_refuse_stays_their_error_and_names_the_batch():
    """Of finite weights, and of a broken one, which is named too."""
    model, guide = build(attention=SGPAttention.partial(inducing=2))
    weight = model.network.layers[0].query_value.weight
    x = torch.randn(2, 5, 3, dtype=F64)
    with torch.no_grad():
        weight.mul_(1e200)
    with pytest.raises(NumericalError, match=r"^batch 0: SGPAttention 'network\.layers\.0': [^(]*$"):
        predict(model, guide, x)
    with torch.no_grad():
        weight[0, 0] = math.nan
    with pytest.raises(NumericalError, match=r"^batch 0: SGPAttention .* \(NaN or Inf in parameter .*query_value"):
        predict(model, guide, x)


def test_a_matrix_that_is_not_positive_definite_is_not_called_nan():
    model, guide = build(attention=SGPAttention.partial(inducing=2))

    def refuse(module, inputs):
        if len(inputs[0]) == 3:
            jitter.cholesky(-torch.eye(2, dtype=F64), "C")

    model.network.layers[0].register_forward_pre_hook(refuse)
    with pytest.raises(NumericalError, match=r"^batch 1: .*not positive definite") as caught:
        predict(model, guide, torch.randn(5, 5, 3, dtype=F64).split([2, 3]))
    assert "NaN" not in str(caught.value)
    assert isinstance(caught.value.__cause__, NumericalError)
