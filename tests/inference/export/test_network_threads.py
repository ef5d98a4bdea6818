"""Networks with stored samples run without Pyro, in several threads at once."""

import threading

import pyro
import pyro.distributions as dist
import pytest
import torch

# MISSING ['threads']
from elbos import TraceMeanField_ELBO
from export_cases import LAYERS
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from pyro.poutine.messenger import Messenger
from thread_cases import TOO_LONG, Thread, WatchedLock, in_threads, second_inside_first
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides, priors
from probattn.draws import draws
from probattn.inference import export, guide_checks, predictor_network
from probattn.models import Supervised, replace_attention
from probattn.models.likelihoods import Categorical
from probattn.pyro_compat import HANDLER_STACK

SAMPLED_IN_CALLS = ("kep-svgp-residual", "sgpa", "sgpa-joint", "sgpa-standard", "cgp", "sparse-cgp")
"""Layers with local sites, which a network of samples draws from the global generator."""


@pytest.fixture
def no_pyro(monkeypatch):
    """Every use of Pyro's handler stack, parameter store or settings is an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("this touches Pyro")

    def enable():
        for module in (pyro.poutine.runtime, pyro.primitives):
            monkeypatch.setattr(module, "apply_stack", refuse)
        monkeypatch.setattr(Messenger, "__enter__", refuse)
        monkeypatch.setattr(pyro.settings, "set", refuse)
        for name in ("scope", "__setitem__", "setdefault"):
            monkeypatch.setattr(type(pyro.get_param_store()), name, refuse)

    return enable


def meeting(module, number):
    """Let that many threads wait for each other inside a module."""
    barrier = threading.Barrier(number)

    def wait(*_):
        barrier.wait(TOO_LONG)

    return module.register_forward_pre_hook(wait)


@pytest.mark.parametrize("num_samples", [None, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_eight_threads_inside_one_network_get_what_one_gets_without_pyro(
    images, network_of, no_pyro, seeded, vit, name, num_samples
):
    model, guide = vit(LAYERS[name], depth=2)
    network = seeded(network_of, model, guide, num_samples)
    inputs = [images(number) for number in range(1, 9)]
    expected = [network(x) for x in inputs]
    no_pyro()
    with meeting(network.model.network, 8):
        found = in_threads([lambda x=x: network(x) for x in inputs])
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert one[key].shape == other[key].shape
            assert one[key].isfinite().all()
            if num_samples is None or name not in SAMPLED_IN_CALLS:
                assert torch.equal(one[key], other[key])


def test_texts_with_masks_in_eight_threads(network_of, no_pyro, seeded, text, texts):
    network = seeded(network_of, *text(), 3)
    inputs = [texts() for _ in range(8)]
    expected = [network(*each) for each in inputs]
    no_pyro()
    with meeting(network.model.network, 8):
        found = in_threads([lambda each=each: network(*each) for each in inputs])
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)


@pytest.mark.parametrize("prior", ["horseshoe", "ard"])
def test_hierarchical_priors_are_stored_as_well(images, network_of, no_pyro, predicted, same_as, seeded, vit, prior):
    model, guide = vit(KEPSVGPAttention.partial(rank=2, multiple=2, prior=priors.PRIORS[prior]()))
    x = images()
    network = seeded(network_of, model, guide, 4)
    expected = seeded(predicted, model, guide, x, 4)
    no_pyro()
    same_as(expected, network(x))


def test_exported_programs_do_not_know_pyro(images, no_pyro, reloaded, vit, tmp_path):
    x = images()
    network = predictor_network(*vit(), num_samples=3)
    no_pyro()
    export(tmp_path / "a.pt2", network, x)
    program, expected = reloaded(tmp_path / "a.pt2"), network(x)
    for found in in_threads([lambda: program(x)] * 8):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def test_a_network_runs_while_other_threads_train_and_hold_handlers(images, vit):
    model, guide = vit()
    x, y = images(), torch.zeros(5, dtype=torch.long)
    network = predictor_network(model, guide, num_samples=3)
    expected = network(x)
    with draws("example"):
        found = Thread(network, x)
        found.start()
        assert torch.equal(found.result()["probs"], expected["probs"])
        assert TraceMeanField_ELBO()(model, guide)(x, y).isfinite()
        with pyro.poutine.trace() as traced:
            assert torch.equal(network(x)["probs"], expected["probs"])
    assert not traced.trace.nodes, "handlers of the same thread do not reach it either"
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), pyro.infer.Trace_ELBO())
    svi.step(x, y)  # puts the model's parameters into Pyro's store by the names that the network's have
    with pyro.poutine.trace(param_only=True):
        assert torch.equal(network(x)["probs"], expected["probs"])


@pytest.mark.parametrize("num_samples", [None, 3])
def test_a_converted_network_runs_in_one_thread_at_a_time(monkeypatch, network_of, no_pyro, seeded, num_samples):
    lock = WatchedLock()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    converted = replace_attention(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        attention=KEPSVGPAttention.partial(rank=2, multiple=2),
    )
    model = Supervised(_Chain(converted), Categorical(), num_data=5)
    guide, x = guides.for_model(model), torch.randn(4, 6, 8)
    network = seeded(network_of, model, guide, num_samples)
    expected = network(x)
    monkeypatch.setattr(threads, "_LOCK", lock)
    no_pyro()
    inner = network.model.network.converted.wrapped.layers[1].linear1
    for found in second_inside_first(inner, lambda: network(x), lambda: network(x), lock):
        assert torch.equal(found["probs"], expected["probs"])


class _Mean(nn.Module):
    def forward(self, x):
        return x.mean(-2)


class _Chain(PyroModule):
    def __init__(self, converted):
        super().__init__()
        self.converted, self.mean = converted, _Mean()

    def forward(self, x):
        return self.mean(self.converted(x))


class _Own(PyroModule):
    """A network with a statement of Pyro's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        return self.linear(x) + shift


class _Bayesian(PyroModule):
    """A network with a weight that is a sample site."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.linear.bias = PyroSample(dist.Normal(torch.zeros(3), 1.0).to_event(1))

    def forward(self, x):
        return self.linear(x)


def _shifted(x):
    return x + pyro.sample("shift", dist.Normal(torch.zeros(3), 1.0).to_event(1))


class _Indirect(_Own):
    def forward(self, x):
        return _shifted(self.linear(x))


@pytest.mark.parametrize(("kind", "num_samples"), [(_Own, 4), (_Indirect, 4), (_Bayesian, None)])
def test_statements_of_pyro_run_under_its_handlers_one_thread_at_a_time(
    monkeypatch, network_of, predicted, same_as, seeded, kind, num_samples
):
    lock = WatchedLock()
    monkeypatch.setattr(threads, "_LOCK", lock)
    model = Supervised(kind(), Categorical(), num_data=5)
    guide, x = AutoNormal(model), torch.randn(5, 4)
    guide_checks.materialise(guide, (x, torch.zeros(5, dtype=torch.long)))
    network = seeded(network_of, model, guide, num_samples)
    same_as(seeded(predicted, model, guide, x, num_samples), network(x))
    for found in second_inside_first(network.model.network, lambda: network(x), lambda: network(x), lock):
        assert torch.equal(found["probs"], network(x)["probs"])
    assert not HANDLER_STACK


def test_the_model_inside_a_network_cannot_be_run_alone(images, vit):
    network = predictor_network(*vit(), num_samples=3)
    with pytest.raises(RuntimeError, match=r"network\.blocks\.0\.attention.*call the network"):
        network.model(images())
    deterministic = predictor_network(*vit(SoftmaxAttention), num_samples=3)
    assert deterministic.model.network(images()).isfinite().all()
