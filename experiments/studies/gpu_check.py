"""Checks of a GPU: every layer against a CPU in float64, a short training run in each mode, and a prediction."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn import guides as guide_for
from probattn.attention.base import LayerFactory
from probattn.draws import at_mean
from probattn.inference import ELBOLoss, TrainOptions, fit, predict
from probattn.models import Classifier, ViT

KEP = KEPSVGPAttention.partial(rank=4)
LAYERS: dict[str, LayerFactory] = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "KEP-SVGP": KEP,
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
"""Largest relative difference of loss, gradient and probabilities in float32."""


def checks(device: str = "cuda") -> Iterator[tuple[str, str, bool]]:
    """Yield the name of each check, its result, and True if it passed; an error is a result, too.

    Args:
        device: what is checked; ``"cpu"`` tries the checks themselves.
    """
    todo = {name: partial(_compare, layer) for name, layer in LAYERS.items()}
    todo |= {f"training, {name}": partial(_train, options) for name, options in MODES.items()}
    for name, check in todo.items():
        try:
            yield name, *check(device)
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", False


def _compare(layer: LayerFactory, device: str) -> tuple[str, bool]:
    """Compare float32 with the CPU in float64."""
    pairs = zip(_values(layer, device, torch.float32), _values(layer, "cpu", torch.float64), strict=True)
    error = torch.stack([(ours - exact).norm() / exact.norm() for ours, exact in pairs]).max().item()  # NaN if any is
    return f"relative difference {error:.0e} of loss, gradient and probabilities", error < TOLERANCE


def _values(layer: LayerFactory, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Return loss, gradient and probabilities with all sites at their means, on the CPU in float64."""
    model, guide, (x, y) = _build(layer)
    module = ELBOLoss(model, guide).to(device, dtype).eval()
    with at_mean():
        loss = module(x.to(device, dtype), y.to(device))
        probs = predict(model, guide, x.to(device, dtype), num_samples=1).probs
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None]
    return [value.detach().cpu().double() for value in (loss, torch.cat(gradients), probs)]


def _train(options: dict, device: str) -> tuple[str, bool]:
    """Train on random images, and compare the loss of the last epoch with that of the first."""
    model, guide, batch = _build(KEP)
    torch.compiler.reset()
    training = TrainOptions(epochs=20, lr=3e-3, num_samples=2, accelerator=device, **options)
    epochs = fit(model, guide, [batch], options=training, progress=False).epochs
    first, last = epochs[0]["train_loss"], epochs[-1]["train_loss"]
    return f"loss {first:.2f} → {last:.2f}, {sum(epoch['seconds'] for epoch in epochs):.0f} s", last < first


def _build(layer: LayerFactory) -> tuple[Classifier, nn.Module, tuple[Tensor, Tensor]]:
    """Return a small model of images, its guide and a random batch, on the CPU."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 3, "dim": 32, "heads": 4, "mlp_dim": 32}
    network = ViT(depth=2, attention=layer, **sizes)
    batch = torch.randn(32, 1, 8, 8), torch.randint(3, (32,))
    model = Classifier(network, num_data=32)
    network.initialise_inducing(batch[0])
    return model, guide_for.for_model(model), batch
