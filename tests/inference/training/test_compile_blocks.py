"""What is compiled computes what it computes uncompiled, and sites and weights keep their names."""

import warnings

import pyro
import pytest
import torch
from elbos import TraceMeanField_ELBO
from torch import nn

from probattn import (
    AnchoredAttention,
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)
from probattn import guides as guide_for
from probattn.draws import at_mean
from probattn.inference import TrainOptions, fit
from probattn.inference.training.device import compile_blocks
from probattn.models import Classifier, ViT

LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEPSVGPAttention.partial(rank=2),
    "sgpa": SGPAttention.partial(inducing=3),
    "cgp": CGPAttention,
    "sparse-cgp": SparseCGPAttention.partial(inducing=3),
    "anchored": AnchoredAttention.partial(anchors=3),
}


@pytest.fixture(scope="module", autouse=True)
def _restore_validation():
    """Undo the first compilation in a process, which turns off PyTorch's validation of distributions."""
    with pyro.validation_enabled():
        yield


@pytest.fixture(autouse=True)
def _reset_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\..*")
        yield
    torch._dynamo.reset()


def build(layer, dtype=torch.float64, *, depth=2, dropout=0.0):
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    network = ViT(depth=depth, dropout=dropout, attention=layer, **sizes)
    model = Classifier(network, num_data=10).to(dtype)
    x, y = torch.randn(5, 1, 4, 4, dtype=dtype), torch.arange(5) % 3
    network.initialise_inducing(x)
    return model, guide_for.for_model(model).to(dtype), x, y


def value_and_gradients(model, guide, x, y):
    """The loss where every latent site is at its mean, and its gradients by name."""
    module = TraceMeanField_ELBO()(model, guide)
    with at_mean():
        loss = module(x, y)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_as_uncompiled(layer, *, depth, **tolerance):
    expected = value_and_gradients(*build(layer, depth=depth))
    model, guide, x, y = build(layer, depth=depth)
    compile_blocks(model)
    loss, gradients = value_and_gradients(model, guide, x, y)
    assert [path for path, module in model.named_modules() if module._compiled_call_impl is not None] == [
        f"network.blocks.{number}" for number in range(depth)
    ]
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    assert gradients.keys() == expected[1].keys()
    torch.testing.assert_close(loss, expected[0], **tolerance)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[1][name], **tolerance)


@pytest.fixture
def _graphs_alone(monkeypatch):
    """Trace the graphs of forward and backward pass, without compiling them."""
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: original(self, backend="aot_eager"))


@pytest.mark.usefixtures("_graphs_alone")
@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_graphs_compute_what_the_program_computes(layer):
    depth = 2 if layer in ("kep-svgp", "sgpa") else 1
    assert_as_uncompiled(LAYERS[layer], depth=depth, rtol=1e-9, atol=1e-9)


def test_compiled_code_computes_what_the_program_computes():
    assert_as_uncompiled(LAYERS["kep-svgp"], depth=1, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_run_leaves_a_model_as_any_other(tmp_path, request, backend):
    if backend == "aot_eager":
        request.getfixturevalue("_graphs_alone")
    model, guide, x, y = build(LAYERS["kep-svgp"], torch.float32)
    names = list(model.state_dict())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(
        model,
        guide,
        [(x, y)],
        [(x, y)],
        options=TrainOptions(epochs=3, compile=True, accelerator="cpu"),
        progress=False,
        out=tmp_path,
    )
    assert list(model.state_dict()) == names
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(value.isfinite().all() for value in model.state_dict().values())
    other, its_guide, *_ = build(LAYERS["kep-svgp"], torch.float32)
    other.load_state_dict(torch.load(tmp_path / "best.pt")["model"])


def graphs_of_a_step(layer, *, depth, monkeypatch):
    """Number of graphs of the loss of two batches of different size, traced but not compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    original = nn.Module.compile
    with monkeypatch.context() as patched:
        patched.setattr(nn.Module, "compile", lambda self, **_: original(self, backend="eager"))
        model, guide, x, y = build(layer, torch.float32, depth=depth)
        compile_blocks(model)
        module = TraceMeanField_ELBO()(model, guide)
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True), pyro.validation_enabled(False):
            for size in (5, 4):
                module(x[:size], y[:size])
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


SLOW_TO_TRACE = ("kep-svgp", "sgpa", "cgp", "sparse-cgp")


@pytest.mark.parametrize(
    "layer", [pytest.param(each, marks=pytest.mark.slow if each in SLOW_TO_TRACE else ()) for each in LAYERS]
)
def test_all_blocks_of_a_kind_share_their_compiled_code(layer, monkeypatch):
    """The name of a block, which its sites begin with, is no reason to compile it anew."""
    few, many = (graphs_of_a_step(LAYERS[layer], depth=depth, monkeypatch=monkeypatch) for depth in (2, 4))
    assert few == many > 0


def test_another_network_runs_the_code_that_was_compiled_for_the_first(monkeypatch):
    original, graphs, counts = nn.Module.compile, [], []

    def count(graph, _):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: original(self, backend=count))
    for _ in range(2):
        model, guide, x, y = build(LAYERS["softmax"], torch.float32)
        compile_blocks(model)
        with pyro.validation_enabled(False):
            TraceMeanField_ELBO()(model, guide)(x, y)
        counts.append(len(graphs))
    assert counts[0] == counts[1] > 0


def test_a_forward_method_of_the_users_is_kept(monkeypatch):
    model, *_ = build(LAYERS["softmax"])
    block = next(iter(model.network.blocks.children()))
    block.forward = lambda x: x
    compile_blocks(model)
    assert block.forward(3) == 3


def graphs_run_in_a_step(layers, *, dropout, monkeypatch):
    """Number of graphs that the second step runs in training, traced but not compiled."""
    torch._dynamo.reset()
    calls = []

    def count(graph, _):
        return lambda *args: calls.append(1) or graph(*args)

    original = nn.Module.compile
    with monkeypatch.context() as patched:
        patched.setattr(nn.Module, "compile", lambda self, **_: original(self, backend=count))
        model, guide, x, y = build(layers, torch.float32, depth=len(layers), dropout=dropout)
        compile_blocks(model)
        module = TraceMeanField_ELBO()(model.train(), guide)
        with pyro.validation_enabled(False):
            for _ in range(2):
                calls.clear()
                module(x, y)
    return len(calls)


@pytest.mark.parametrize("last", [pytest.param("softmax", marks=pytest.mark.slow), "kep-svgp"])
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_a_block_without_sites_is_one_graph(last, dropout, monkeypatch):
    """Also beside a block with sites, and with dropout."""
    few, many = (
        graphs_run_in_a_step([SoftmaxAttention] * softmax + [LAYERS[last]], dropout=dropout, monkeypatch=monkeypatch)
        for softmax in (1, 3)
    )
    assert many - few == 2
