"""The posterior predictive against replayed draws and closed forms."""

import math
import weakref

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from known_predictives import F64, build, outputs_by_hand
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import SoftmaxAttention, draws
from probattn.inference import predict
from probattn.inference.objective import guide_checks
from probattn.inference.prediction import latents
from probattn.inference.prediction import predict as prediction
from probattn.models.likelihoods import Categorical, Gaussian


@pytest.fixture
def recorded(monkeypatch):
    """The trace of the latent sites of every predict."""
    traces, original = [], latents.global_part

    def record(*args):
        traces.append(original(*args))
        return traces[-1]

    monkeypatch.setattr(latents, "global_part", record)
    return traces


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


@pytest.mark.parametrize("auto", [None, AutoNormal, AutoMultivariateNormal])
def test_all_batches_of_a_loader_share_the_draws(auto):
    model, guide = build()
    x, y = torch.randn(8, 5, 3, dtype=F64), torch.randint(3, (8,))
    if auto:
        guide = auto(model)
        guide_checks.materialise(guide, (x, y))
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
            layer.log_scale.copy_(torch.tensor([[0.1, 5.0], [1.0, 0.5]]).log())
    x = torch.randn(2, 5, 3, dtype=F64)
    result = predict(model, None, x, num_samples=6)
    torch.testing.assert_close(result.probs, outputs_by_hand(model, recorded[0], x, 6).softmax(-1).mean(0))
    predict(model, None, x, num_samples=4000)
    u = recorded[1].nodes["network.layers.0.u"]["value"][:, 0]
    assert u.shape == (4000, 2, 2, 2)
    lam = torch.tensor([[0.1, 5.0], [1.0, 0.5]], dtype=F64)[:, None, :].expand(2, 2, 2)
    torch.testing.assert_close(u.std(0), lam, rtol=0.06, atol=0)
    assert (u.mean(0).abs() < 4.5 * lam / 4000**0.5).all()


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


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian()])
def test_nothing_of_earlier_batches_is_kept_but_results(likelihood):
    model, guide = build(likelihood)
    alive = []

    def batches():
        inputs = []
        for _ in range(5):
            x = torch.randn(2, 5, 3, dtype=F64)
            inputs.append(weakref.ref(x))
            yield x, torch.zeros(2, dtype=torch.long) if isinstance(likelihood, Categorical) else torch.zeros(2, 3)
            del x
            alive.append(sum(ref() is not None for ref in inputs))

    predict(model, guide, batches(), num_samples=2)
    assert max(alive) <= 1


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian()])
def test_an_auto_guide_without_parameters_is_refused_until_it_is_materialised(likelihood):
    model, _ = build(likelihood)
    model.float()
    x = torch.randn(4, 5, 3)
    y = torch.randint(3, (4,)) if isinstance(likelihood, Categorical) else torch.randn(4, 3)
    guide = AutoNormal(model)
    for data in (x, [(x, y)]):
        with pytest.raises(ValueError, match="materialise"):
            predict(model, guide, data)
    assert list(guide.parameters()) == []
    guide_checks.materialise(guide, (x, y))
    predict(model, guide, x, num_samples=3)
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
        monkeypatch.setattr(prediction, "CPU_CHUNK_SIZE", most)
        torch.manual_seed(0)
        results.append(predict(model, guide, x, num_samples=4, keep_draws=True))
    for other in results[1:]:
        torch.testing.assert_close(other.draws, results[0].draws)
        torch.testing.assert_close(other.expected_entropy, results[0].expected_entropy)


def test_samples_that_run_one_after_another_take_whole_chunks():
    calls = []

    class Weighted(nn.Module):
        def forward(self, x, y=None):
            weight = pyro.sample("weight", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
            calls.append(len(x))
            with pyro.plate("data", len(x)):
                return pyro.sample("y", dist.Normal(nn.functional.linear(x, weight[None])[:, 0], 0.1), obs=y)

    found = predict(Weighted(), None, torch.randn(20, 4), num_samples=300, vectorize=False)
    assert found.mean.shape == (20,)
    assert calls == [20] * 300
