"""Checks of a GPU: every layer against a CPU in float64, a short training run in each mode, and a prediction."""

import copy
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn import guides as guide_for
from probattn.attention.base import LayerFactory
from probattn.draws import at_mean
from probattn.inference import ELBOLoss, TrainOptions, fit, predict
from probattn.inference.non_finite import first_line
from probattn.models import Classifier, ViT

LAYERS: dict[str, LayerFactory] = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "KEP-SVGP": KEPSVGPAttention.partial(rank=4),
    "KEP-SVGP, concat": KEPSVGPAttention.partial(rank=4, merge="concat", tokens=16),
    "KEP-SVGP, svd": KEPSVGPAttention.partial(rank=4, projection="svd"),
    "KEP-SVGP, residual": KEPSVGPAttention.partial(rank=4, residual=1.0),
    "SGPA": SGPAttention.partial(inducing=8),
    "SGPA, standard": SGPAttention.partial(inducing=None),
    "CGP": CGPAttention,
    "CGP, collapsed": CGPAttention.partial(collapsed=True),
    "sparse CGP": SparseCGPAttention.partial(inducing=8),
    "sparse CGP, collapsed": SparseCGPAttention.partial(inducing=8, collapsed=True),
}
MODES = {
    "float32": {},
    "bf16": {"precision": "bf16-mixed"},
    "compiled": {"compile": True},
    "bf16, compiled": {"precision": "bf16-mixed", "compile": True},
}
"""Options of the short training runs."""
TOLERANCE = 1e-2
"""Largest relative difference of a loss or a gradient in float32."""


class Check(NamedTuple):
    """Name of a check, its result in words, and True if it passed."""

    name: str
    result: str
    passed: bool


def checks(device: str = "cuda") -> Iterator[Check]:
    """Yield the result of each check; an error is one, too.

    Args:
        device: what is checked; ``"cpu"`` tries the checks themselves.
    """
    for name, layer in LAYERS.items():
        yield _checked(f"{name}: loss and gradient", lambda layer=layer: _compare(layer, device))
    for name, options in MODES.items():
        yield _checked(f"training, {name}", lambda options=options: _train(options, device))
    yield _checked("prediction", lambda: _predict(device))


def _checked(name: str, check: Callable[[], tuple[str, bool]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:
        return Check(name, f"{type(error).__name__}: {first_line(error)}", False)


def _compare(layer: LayerFactory, device: str) -> tuple[str, bool]:
    """Compare loss and gradient in float32 with those on the CPU in float64, with all sites at their means."""
    model, guide, (x, y) = _build(layer)
    exact = copy.deepcopy((model, guide))
    expected = _loss_and_gradient(exact[0].double(), exact[1].double(), x.double(), y)
    found = _loss_and_gradient(model.to(device), guide.to(device), x.to(device), y.to(device))
    loss, gradient = (
        ((one.cpu() - other).norm() / other.norm()).item() for one, other in zip(found, expected, strict=True)
    )
    passed = loss < TOLERANCE and gradient < TOLERANCE
    return f"relative difference {loss:.0e} of the loss, {gradient:.0e} of the gradient", passed


def _loss_and_gradient(model: nn.Module, guide: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    module = ELBOLoss(model.eval(), guide.eval())
    with at_mean():
        loss = module(x, y)
    loss.backward()
    gradients = [each.grad.flatten() for each in module.parameters() if each.grad is not None]
    return loss.detach().double(), torch.cat(gradients).double()


def _train(options: dict, device: str) -> tuple[str, bool]:
    """Train on random images, and compare the loss of the last epoch with that of the first."""
    model, guide, batch = _build(LAYERS["KEP-SVGP"])
    torch.compiler.reset()
    started = time.perf_counter()
    training = TrainOptions(epochs=20, lr=3e-3, num_samples=2, accelerator=device, **options)
    losses = [each["train_loss"] for each in fit(model, guide, [batch], options=training, progress=False).epochs]
    return f"loss {losses[0]:.2f} → {losses[-1]:.2f}, {time.perf_counter() - started:.0f} s", losses[-1] < losses[0]


def _predict(device: str) -> tuple[str, bool]:
    """Predict with the posterior at its mean, and compare with the CPU."""
    model, guide, (x, _) = _build(LAYERS["KEP-SVGP"])
    with at_mean():
        expected = predict(model, guide, x, num_samples=1).probs
        found = predict(model.to(device), guide.to(device), x.to(device), num_samples=1).probs
    worst = (found.cpu() - expected.cpu()).abs().max().item()
    return f"probabilities differ by {worst:.0e}", worst < TOLERANCE


def _build(layer: LayerFactory) -> tuple[Classifier, nn.Module, tuple[Tensor, Tensor]]:
    """Return a small model of images, its guide and a random batch, on the CPU."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 3, "dim": 32, "heads": 4, "mlp_dim": 32}
    network = ViT(depth=2, attention=layer, **sizes)
    batch = torch.randn(32, 1, 8, 8), torch.randint(3, (32,))
    model = Classifier(network, num_data=32)
    network.initialise_inducing(batch[0])
    return model, guide_for.for_model(model), batch
