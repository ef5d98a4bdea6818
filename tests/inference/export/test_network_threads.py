"""Networks with stored samples and exported programs run without Pyro, in several threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
from elbos import TraceMeanField_ELBO
from export_cases import LAYERS
from pyro.poutine.messenger import Messenger
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, priors
from probattn.inference import export, predictor_network

SAMPLED_IN_CALLS = ("anchored-draw", "kep-svgp-residual", "sgpa", "sgpa-joint", "sgpa-standard", "cgp", "sparse-cgp")
"""Layers with local sites, which a network of samples draws from the global generator."""
TOO_LONG = 120


@pytest.fixture
def no_pyro(monkeypatch):
    """Every use of Pyro's handlers or parameter store is an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("this touches Pyro")

    def enable():
        for module in (pyro.poutine.runtime, pyro.primitives):
            monkeypatch.setattr(module, "apply_stack", refuse)
        monkeypatch.setattr(Messenger, "__enter__", refuse)
        for name in ("scope", "__setitem__", "setdefault"):
            monkeypatch.setattr(type(pyro.get_param_store()), name, refuse)

    return enable


def in_threads(calls):
    """Results of calls that run in a thread each."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(TOO_LONG) for future in [pool.submit(call) for call in calls]]


def together(network, inputs):
    """Results of calls that are all inside the network at one time."""
    barrier = threading.Barrier(len(inputs))

    def wait(*_):
        barrier.wait(TOO_LONG)

    network.model.network.register_forward_pre_hook(wait)
    return in_threads([lambda each=each: network(*each) for each in inputs])


@pytest.mark.parametrize("num_samples", [None, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_threads_inside_one_network_get_what_one_gets(images, network_of, no_pyro, seeded, vit, name, num_samples):
    network = seeded(network_of, *vit(LAYERS[name], depth=2), num_samples)
    inputs = [(images(number),) for number in range(1, 5)]
    expected = [network(*each) for each in inputs]
    no_pyro()
    for one, other in zip(together(network, inputs), expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert one[key].shape == other[key].shape
            assert one[key].isfinite().all()
            if num_samples is None or name not in SAMPLED_IN_CALLS:
                assert torch.equal(one[key], other[key])


def test_texts_with_masks_in_threads(network_of, no_pyro, seeded, text, texts):
    network = seeded(network_of, *text(), 3)
    inputs = [texts() for _ in range(4)]
    expected = [network(*each) for each in inputs]
    no_pyro()
    for one, other in zip(together(network, inputs), expected, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)


@pytest.mark.parametrize("prior", ["horseshoe", "ard"])
def test_hierarchical_priors_are_stored_as_well(images, network_of, no_pyro, predicted, same_as, seeded, vit, prior):
    model, guide = vit(KEPSVGPAttention.partial(rank=2, multiple=2, prior=priors.PRIORS[prior]()))
    x = images()
    network = seeded(network_of, model, guide, 4)
    expected = seeded(predicted, model, guide, x, 4)
    no_pyro()
    same_as(expected, network(x))


def test_exported_programs_run_in_threads(images, no_pyro, reloaded, vit, tmp_path):
    x = images()
    network = predictor_network(*vit(), num_samples=3)
    export(tmp_path / "a.pt2", network, x)
    no_pyro()
    program, expected = reloaded(tmp_path / "a.pt2"), network(x)
    for found in in_threads([lambda: program(x)] * 4):
        for name, value in expected.items():
            assert_close(found[name], value)


def test_handlers_and_the_parameter_store_do_not_reach_a_network(images, vit):
    model, guide = vit()
    x, y = images(), torch.zeros(5, dtype=torch.long)
    network = predictor_network(model, guide, num_samples=3)
    expected = network(x)["probs"]
    with draws("example"):
        assert torch.equal(in_threads([lambda: network(x)])[0]["probs"], expected)
        assert TraceMeanField_ELBO()(model, guide)(x, y).isfinite()
        with pyro.poutine.trace() as traced:
            assert torch.equal(network(x)["probs"], expected)
    assert not traced.trace.nodes
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), pyro.infer.Trace_ELBO())
    svi.step(x, y)  # puts the model's parameters into Pyro's store by the names that the network's have
    with pyro.poutine.trace(param_only=True):
        assert torch.equal(network(x)["probs"], expected)
