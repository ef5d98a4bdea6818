"""The loss of a captured step needs nothing of the host: checked on fake CUDA tensors, without a GPU.

While a CUDA graph is captured, no operation may read a tensor on the host or copy one from it.
"""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pyro
import pytest
import torch
from attention_layers import ANY_LENGTH, LAYERS
from elbos import Trace_ELBO, TraceMeanField_ELBO
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probattn import guides
from probattn.functional import errors
from probattn.inference import TrainOptions
from probattn.inference.training import cuda_graph
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.step import Step
from probattn.models import Classifier, Supervised, TextTagger, TextTransformer, ViT, likelihoods
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding

NETWORK = {"classes": 3, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8, "dropout": 0.1}


class Transfers(TorchDispatchMode):
    """Record the operations with tensors on both the CPU and another device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        kinds = {each.device.type for each in tree_leaves((args, kwargs or {}, out)) if isinstance(each, torch.Tensor)}
        if len(kinds) > 1 and not is_scalar_argument(func, args):
            self.seen.append(func.name())
        return out


def is_scalar_argument(func, args):
    """A scalar on the CPU is an argument of the kernel, no copy."""
    on_cpu = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor) and each.device.type == "cpu"]
    return torch.Tag.pointwise in func.tags and all(each.dim() == 0 for each in on_cpu)


def image_case(layer):
    network = ViT(image_size=4, patch_size=2, channels=1, attention=LAYERS[layer], **NETWORK)
    return Classifier(network, num_data=10), {"x": (4, 1, 4, 4), "y": (4,)}


def text_case(layer, *, spelled=False):
    embedding = SpelledEmbedding(20, 10, 8) if spelled else WordEmbedding(20, 8)
    network = TextTransformer(embedding, max_length=6, attention=LAYERS[layer], **NETWORK)
    shapes = {"words": (4, 5, 5) if spelled else (4, 5), "y": (4,), "mask": (4, 5)}
    return Classifier(network, num_data=10), shapes


def tagging_case(layer):
    network = TextTagger(WordEmbedding(20, 8), max_length=6, attention=LAYERS[layer], **NETWORK)
    model = Supervised(network, likelihoods.TokenCategorical(), num_data=10)
    return model, {"words": (4, 5), "y": (4, 5), "mask": (4, 5)}


CASES = {f"image-{name}": (image_case, name) for name in LAYERS}
CASES |= {f"text-{name}": (text_case, name) for name in ANY_LENGTH}
CASES["spelled-softmax"] = partial(text_case, spelled=True), "softmax"
CASES |= {f"tagging-{name}": (tagging_case, name) for name in ("softmax", "kep-svgp")}
GRID = [
    (case, precision, elbo)
    for case in CASES
    for precision in ("32", "bf16-mixed")
    for elbo in (TraceMeanField_ELBO, Trace_ELBO)
]
IN_EVERY_RUN = 4  # one in so many cases; the others are slow tests


def can_fake_gamma():
    try:
        return torch._standard_gamma(torch.ones(1, device="meta")).is_meta
    except NotImplementedError:  # PyTorch 2.11
        return False


def make(kind, shape):
    if kind == "x":
        return torch.randn(shape, device="cuda")
    dtype = torch.bool if kind == "mask" else torch.long
    return torch.ones(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("case", "precision", "elbo"),
    [
        pytest.param(*row, marks=() if number % IN_EVERY_RUN == number // 4 % IN_EVERY_RUN else pytest.mark.slow)
        for number, row in enumerate(GRID)
    ],
)
def test_a_loss_needs_nothing_of_the_host(case, precision, elbo, monkeypatch):
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True)
    monkeypatch.setattr("probattn.families._has_stddev", lambda prior: True)  # read once, when the guide is built
    build, layer = CASES[case]
    if layer == "kep-svgp-student-t" and not can_fake_gamma():
        pytest.skip("this PyTorch samples no gamma variables on fake tensors")
    with FakeTensorMode():
        with torch.device("cuda"), pyro.validation_enabled(False):
            model, shapes = build(layer)
            guide = guides.for_model(model)
        batch = tuple(make(kind, shape) for kind, shape in shapes.items())
        bound = elbo()
        objective = Objective(
            bound(model, guide).train(), bound, options=TrainOptions(precision=precision), num_data=10
        )
        coefficients = StepCoefficients(*torch.zeros(3, device="cuda"))
        with pyro.validation_enabled(False), errors.deferred() as failures, Transfers() as transfers:
            loss = objective(batch, coefficients)
            failures.add(~loss.isfinite())
    assert failures.flag.device.type == "cuda"
    assert loss.device.type == "cuda"
    assert transfers.seen == []


@pytest.mark.parametrize("layer", ["softmax-dropout", "kep-svgp", "sgpa-joint", "cgp-learned", "sparse-cgp"])
def test_backward_and_clipping_need_nothing_of_the_host(layer, monkeypatch):
    """On the meta device, as there is no backward pass of fake CUDA tensors without a driver."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *args: False)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda *args: torch.bfloat16)
    with pyro.validation_enabled(False):
        model, _ = image_case(layer)
        guide = guides.for_model(model)
        for part in (model, guide):
            part.to("meta")
        elbo = TraceMeanField_ELBO()
        objective = Objective(elbo(model, guide).train(), elbo, options=TrainOptions(), num_data=10)
        optimizer = torch.optim.SGD([*model.parameters(), *guide.parameters()], lr=0.1)
        optimizers = SimpleNamespace(all=[optimizer], optimizer=optimizer)
        step = Step(objective, optimizers, backward=torch.Tensor.backward, clip_norm=1.0, parts={"model": model})
        x, y = torch.empty(4, 1, 4, 4, device="meta"), torch.empty(4, dtype=torch.long, device="meta")
        with errors.deferred() as failures, Transfers() as transfers:
            objective((x, y), StepCoefficients(*torch.empty(3, device="meta"))).backward()
            failures.add(~step.clip_gradients().isfinite())
    assert failures.flag.is_meta
    assert transfers.seen == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_learning_rates_on_a_gpu_are_float32_and_coefficients_are_not_narrower(dtype, monkeypatch):
    """PyTorch's fused Adam reads the rate of a GPU as float32, and refuses another dtype."""
    monkeypatch.setattr(cuda_graph, "make_graph_cache", lambda _: None)
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype, device="cuda"))
        optimizers = SimpleNamespace(all=[torch.optim.Adam([weight], lr=0.1)])
        step = cuda_graph.CUDAGraphStep(SimpleNamespace(objective=None, optimizers=optimizers), like=weight)
    assert [each.dtype for each in step.lrs] == [torch.float32]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert {each.dtype for each in (*step.coefficients, *step.loss_weights)} == {wide}
