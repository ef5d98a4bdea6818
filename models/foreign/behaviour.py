"""Whether a module that looks like attention does what attention does."""

import torch
from torch import Tensor, nn

from probattn.attention.softmax import SoftmaxAttention
from probattn.models.foreign.recognise import Old
from probattn.models.foreign.weights import build


@torch.no_grad()
def check_behaviour(module: nn.Module, old: Old) -> None:
    """Refuses a module whose output is not the softmax attention of its maps, on a few tokens in evaluation mode.

    A structure does not show windows, rotations, other scales or attention between channels.

    Args:
        module: what was recognised.
        old: what was read off it.

    Raises:
        ValueError: another output, or a module that cannot be called on tokens alone.
    """
    weight, dim = old.query.weight, old.query.weight.shape[1]
    x = torch.randn(2, 5, dim, generator=torch.Generator().manual_seed(0)).to(weight)
    x = (x,) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
    training = module.training
    module.eval()
    try:
        expected = _first(old.adapt(build(SoftmaxAttention, old)).eval()(*x))
        theirs = _first(module.get_submodule(old.inner)(*x))
    except Exception as error:  # whatever a foreign module raises
        raise ValueError(f"it cannot be called on tokens alone: {type(error).__name__}: {error}") from error
    finally:
        module.train(training)
    if old.emptied:
        theirs = module.get_submodule(old.emptied)(theirs)
    eps = max(torch.finfo(dtype).eps for dtype in (weight.dtype, torch.float32))  # some compute scores in float32
    tolerance = eps**0.5 * expected.abs().max()
    if theirs.shape != expected.shape or (theirs - expected).abs().max() > tolerance:
        raise ValueError("its output is not the softmax attention of its maps with scale 1/√(head width)")


def _first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]
