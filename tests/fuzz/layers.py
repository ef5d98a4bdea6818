"""Call layers on hostile inputs: finite numbers, or an error that says what is wrong; never NaN from finite inputs."""

import random
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from probattn import (
    AnchoredAttention,
    CGPAttention,
    JitterWarning,
    KEPSVGPAttention,
    KernelAttention,
    NumericalError,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.inference import ELBOLoss, predict
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

DIM, HEADS, CLASSES = 8, 2, 3
LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kernel, ARD": KernelAttention.partial(kernel="ard", symmetric=True),
    "KEP-SVGP": KEPSVGPAttention.partial(rank=2),
    "KEP-SVGP, horseshoe": KEPSVGPAttention.partial(rank=2, prior="horseshoe"),
    "SGPA": SGPAttention.partial(inducing=3),
    "SGPA, joint": SGPAttention.partial(inducing=3, draws="joint"),
    "CGP": CGPAttention,
    "CGP, collapsed": CGPAttention.partial(collapsed=True),
    "CGP, prior": CGPAttention.partial(canonical_guide="prior"),
    "sparse CGP": SparseCGPAttention.partial(inducing=3),
    "anchored": AnchoredAttention.partial(anchors=3),
    "anchored, drawn": AnchoredAttention.partial(anchors=3, output="draw"),
    "sparse CGP, collapsed": SparseCGPAttention.partial(inducing=3, collapsed=True),
}
INPUTS: dict[str, Callable[[Tensor, random.Random], Tensor]] = {
    "usual": lambda x, _: x,
    "NaN": lambda x, chosen: _with_value(x, chosen, torch.nan),
    "Inf": lambda x, chosen: _with_value(x, chosen, torch.inf),
    "one huge number": lambda x, chosen: _with_value(x, chosen, 10 ** chosen.uniform(5, 38)),
    "huge": lambda x, chosen: x * 10 ** chosen.uniform(1, 30),
    "tiny": lambda x, chosen: x * 10 ** chosen.uniform(-45, -3),
    "zero": lambda x, _: torch.zeros_like(x),
    "equal tokens": lambda x, _: x[:, :1].expand_as(x),
    "nearly equal tokens": lambda x, chosen: x[:, :1] + x * 10 ** chosen.uniform(-8, -1),
    "equal examples": lambda x, _: x[:1].expand_as(x),
    "one token": lambda x, _: x[:, :1],
    "no token": lambda x, _: x[:, :0],
    "no example": lambda x, _: x[:0],
    "another width": lambda x, chosen: x[..., : chosen.randrange(DIM)],
    "no batch": lambda x, _: x[0],
    "more dimensions": lambda x, _: x[None, None],
    "strided": lambda x, _: x.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda x, _: x.transpose(0, 1).contiguous().transpose(0, 1),
    "float64": lambda x, _: x.double(),
    "bfloat16": lambda x, _: x.bfloat16(),
    "integers": lambda x, _: x.long(),
    "booleans": lambda x, _: x > 0,
    "complex": lambda x, _: x + 1j,
}
MASKS: dict[str, Callable[[int, int, random.Random], Tensor | None]] = {
    "none": lambda n, length, chosen: None,
    "all": lambda n, length, chosen: torch.ones(n, length, dtype=torch.bool),
    "lengths": lambda n, length, chosen: (
        torch.arange(length) < torch.tensor([chosen.randint(1, max(1, length)) for _ in range(n)])[:, None]
        if n
        else torch.ones(0, length, dtype=torch.bool)
    ),
    "an empty example": lambda n, length, chosen: torch.arange(n)[:, None] + torch.zeros(length, dtype=torch.long) > 0,
    "integers": lambda n, length, chosen: torch.ones(n, length, dtype=torch.long),
    "another shape": lambda n, length, chosen: torch.ones(n, length + 1, dtype=torch.bool),
}
ERRORS = (ValueError, TypeError, RuntimeError, IndexError, NumericalError)
"""Errors that PyTorch and this library raise for inputs that do not fit."""


class Network(nn.Module):
    """A layer with a linear head on the mean token."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.attention, self.head = layer(DIM, HEADS), nn.Linear(DIM, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.attention(x, mask).mean(-2))


def fuzz_layers(chosen: random.Random) -> str:
    """Predict, and differentiate the ELBO, for one layer, one kind of input and one kind of mask.

    Returns:
        Layer, input and mask, with the outcome.

    Raises:
        AssertionError: NaN or Inf in the prediction, or in the loss or its gradient for an input of ordinary size; or
            an error without a message.
    """
    layer, kind, mask_kind = (chosen.choice(sorted(each)) for each in (LAYERS, INPUTS, MASKS))
    torch.manual_seed(chosen.randrange(2**32))
    model = Supervised(Network(LAYERS[layer]), Categorical(), num_data=10)
    guide = guides.for_model(model)
    n, length = chosen.randint(1, 4), chosen.randint(1, 9)
    usual = torch.randn(n, length, DIM)
    x = INPUTS[kind](usual, chosen)
    mask = MASKS[mask_kind](*(x.shape[:2] if x.dim() > 1 else (n, length)), chosen)
    batch = (x, torch.arange(len(x)) % CLASSES, *(() if mask is None else (mask,)))
    case = f"{layer}, {kind} {tuple(x.shape)}, mask {mask_kind}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        outcomes = [_outcome(case, lambda: _predict(model, guide, batch))]
        outcomes.append(_outcome(case, lambda: _differentiate(model, guide, batch)))
    return f"{case}: {', '.join(outcomes)}"


def _outcome(case: str, function: Callable[[], None]) -> str:
    try:
        function()
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error
    except ERRORS as error:
        if not str(error).strip():
            raise AssertionError(f"{case}: {type(error).__name__} without a message") from error
        return type(error).__name__
    return "finite"


def _predict(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...]) -> None:
    found = predict(model, guide, [batch], num_samples=3)
    assert found.probs.shape == (len(batch[0]), CLASSES), f"probabilities of shape {tuple(found.probs.shape)}"
    assert found.probs.isfinite().all(), "NaN or Inf in the prediction"
    assert ((found.probs.sum(-1) - 1).abs() < 1e-2).all(), "probabilities do not sum to one"


def _differentiate(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...]) -> None:
    model.zero_grad()
    loss = ELBOLoss(model, guide)(*batch)
    loss.backward()
    x = batch[0]
    if x.isfinite().all() and x.abs().amax() < 1e3 and loss.isfinite():
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is None or gradient.isfinite().all(), f"NaN or Inf in the gradient of {name}"


def _with_value(x: Tensor, chosen: random.Random, value: float) -> Tensor:
    x = x.clone()
    x[tuple(chosen.randrange(size) for size in x.shape)] = value
    return x
