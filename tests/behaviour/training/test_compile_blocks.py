"""Compiled blocks compute the same as uncompiled ones, and sites and weights keep their names."""

import warnings

import pyro
import pytest
import torch
from elbos import TraceMeanField_ELBO
from export_cases import KEP, images, vit
from torch import nn
from torch.testing import assert_close

from probattn import SGPAttention, SoftmaxAttention
from probattn.draws import at_mean
from probattn.inference import TrainOptions, fit
from probattn.inference.training.device import compile_blocks

SGPA = SGPAttention.partial(inducing=3)


@pytest.fixture(scope="module", autouse=True)
def _restore_validation():
    """Undo the first compilation in a process, which turns off PyTorch's validation of
    distributions."""
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


def build(layer, **options):
    torch.manual_seed(0)
    return *vit(layer, **options), images(), torch.arange(5) % 3


def value_and_gradients(model, guide, x, y):
    """The loss where every latent site is at its mean, and its gradients by name."""
    module = TraceMeanField_ELBO()(model, guide)
    with at_mean():
        loss = module(x, y)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.fixture
def graphs(monkeypatch):
    """Trace graphs without compiling them; return a dictionary of the graphs of a run."""
    original, counts = nn.Module.compile, {"traced": 0, "run": 0}

    def count(graph, _):
        counts["traced"] += 1

        def run(*args):
            counts["run"] += 1
            return graph(*args)

        return run

    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: original(self, backend=count))
    return counts


@pytest.mark.parametrize(
    "layer", [KEP, pytest.param(SGPA, marks=pytest.mark.slow)], ids=["kep-svgp", "sgpa"]
)
def test_compiled_blocks_compute_what_the_program_computes(layer, graphs):
    expected = value_and_gradients(*build(layer))
    model, guide, x, y = build(layer)
    compile_blocks(model)
    loss, gradients = value_and_gradients(model, guide, x, y)
    assert graphs["run"] > 0
    assert_close(loss, expected[0], rtol=1e-9, atol=1e-9)
    assert_close(gradients, expected[1], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("graphs")
def test_a_compiled_run_leaves_a_model_as_any_other(tmp_path):
    model, guide, x, y = build(KEP)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = TrainOptions(epochs=2, compile=True, accelerator="cpu")
    fit(model, guide, [(x, y)], [(x, y)], options=options, progress=False, out=tmp_path)
    assert list(model.state_dict()) == list(before)
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    other, *_ = build(KEP)
    other.load_state_dict(torch.load(tmp_path / "best.pt")["model"])


def counted(graphs, layers, *, dropout=0.0):
    """Numbers of graphs that are traced for two batches of different size, and run for the
    second."""
    torch._dynamo.reset()
    model, guide, x, y = build(layers, depth=len(layers), dropout=dropout)
    compile_blocks(model)
    module = TraceMeanField_ELBO()(model.train(), guide)
    graphs.update(traced=0, run=0)
    with (
        torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        pyro.validation_enabled(False),
    ):
        module(x, y)
        graphs["run"] = 0
        module(x[:4], y[:4])
    return dict(graphs)


@pytest.mark.slow
def test_all_blocks_of_a_kind_share_their_code_and_a_block_without_sites_is_one_graph(graphs):
    """The name of a block, which its sites begin with, is no reason to compile it anew; also with
    dropout."""
    few, many = (counted(graphs, [SoftmaxAttention] * n + [KEP], dropout=0.1) for n in (1, 3))
    assert few["traced"] == many["traced"]
    assert many["run"] - few["run"] == 2


def test_a_forward_method_of_the_users_is_kept():
    model, *_ = build(SoftmaxAttention)
    block = next(iter(model.network.blocks.children()))
    block.forward = lambda x: x
    compile_blocks(model)
    assert block.forward(3) == 3
