"""Checks of a GPU: every layer against a CPU in float64, a short training run in each mode, and a prediction."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn import guides as guide_for
from probattn.attention.base import LayerFactory
from probattn.draws import at_mean
from probattn.inference import ELBOLoss, TrainOptions, fit, predict
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
BF16 = {"precision": "bf16-mixed"}
MODES = {"float32": {}, "bf16": BF16, "compiled": {"compile": True}, "bf16, compiled": BF16 | {"compile": True}}
"""Options of the short training runs."""
TOLERANCE = 1e-2
"""Largest relative difference of a loss or a gradient in float32."""
Result = tuple[str, bool]
"""Result of a check in words, and True if it passed."""


def checks(device: str = "cuda") -> Iterator[tuple[str, str, bool]]:
    """Yield the name of each check and its result; an error is one, too.

    Args:
        device: what is checked; ``"cpu"`` tries the checks themselves.
    """
    todo: dict[str, Callable[[str], Result]] = {
        f"{name}: loss and gradient": partial(_compare, layer) for name, layer in LAYERS.items()
    }
    todo |= {f"training, {name}": partial(_train, options) for name, options in MODES.items()}
    for name, check in (todo | {"prediction": _predict}).items():
        try:
            yield name, *check(device)
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", False


def _compare(layer: LayerFactory, device: str) -> Result:
    """Compare loss and gradient in float32 with those on the CPU in float64, with all sites at their means."""
    model, guide, (x, y) = _build(layer)
    exact = copy.deepcopy((model, guide))
    expected = _loss_and_gradient(exact[0].double(), exact[1].double(), x.double(), y)
    computed = _loss_and_gradient(model.to(device), guide.to(device), x.to(device), y.to(device))
    errors = [((a.cpu() - b).norm() / b.norm()).item() for a, b in zip(computed, expected, strict=True)]
    return "relative difference {:.0e} of the loss, {:.0e} of the gradient".format(*errors), max(errors) < TOLERANCE


def _loss_and_gradient(model: nn.Module, guide: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    module = ELBOLoss(model.eval(), guide.eval())
    with at_mean():
        loss = module(x, y)
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None]
    return loss.detach().double(), torch.cat(gradients).double()


def _train(options: dict, device: str) -> Result:
    """Train on random images, and compare the loss of the last epoch with that of the first."""
    model, guide, batch = _build(LAYERS["KEP-SVGP"])
    torch.compiler.reset()
    training = TrainOptions(epochs=20, lr=3e-3, num_samples=2, accelerator=device, **options)
    epochs = fit(model, guide, [batch], options=training, progress=False).epochs
    first, last = epochs[0]["train_loss"], epochs[-1]["train_loss"]
    return f"loss {first:.2f} → {last:.2f}, {sum(epoch['seconds'] for epoch in epochs):.0f} s", last < first


def _predict(device: str) -> Result:
    """Predict with the posterior at its mean, and compare with the CPU."""
    model, guide, (x, _) = _build(LAYERS["KEP-SVGP"])
    with at_mean():
        expected = predict(model, guide, x, num_samples=1).probs.cpu()
        probs = predict(model.to(device), guide.to(device), x.to(device), num_samples=1).probs.cpu()
    worst = (probs - expected).abs().max().item()
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
