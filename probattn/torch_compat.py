"""Access to private parts of PyTorch: a new version that moves them breaks this file and its tests alone."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Operator of ``scaled_dot_product_attention`` on a CPU."""
CPU_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""Operator of its backward pass."""


def is_dropout(module: nn.Module) -> bool:
    """Return True for PyTorch's dropout modules (``nn.Dropout``, ``nn.Dropout2d``, ``nn.AlphaDropout``, ...)."""
    return isinstance(module, _DropoutNd)


def is_batch_norm(module: nn.Module) -> bool:
    """Return True for batch normalisation of any number of dimensions, ``nn.SyncBatchNorm`` included."""
    return isinstance(module, _BatchNorm)


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the children of a module by name, in their order: the module's own dictionary, which may be changed."""
    return module._modules


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the parameters that a module holds directly, by name: the module's own dictionary."""
    return module._parameters


def distribution_fields(distribution: Distribution) -> dict[str, Any]:
    """Return the attributes of a distribution by name, without its batch shape."""
    return {name: value for name, value in vars(distribution).items() if name != "_batch_shape"}


def set_normalised_logits(distribution: Categorical, logits: Tensor, validate_args: bool | None) -> None:
    """Initialise a categorical distribution by logits whose exponentials sum to 1, without normalising them again.

    PyTorch's constructor subtracts their logsumexp, a dozen kernels on a GPU where ``log_softmax`` is one.
    """
    distribution.logits = distribution._param = logits
    distribution._num_events = logits.shape[-1]
    Distribution.__init__(distribution, logits.shape[:-1], validate_args=validate_args)


def set_batch_shape(distribution: Distribution, batch_shape: torch.Size) -> None:
    """Set the batch shape of a distribution whose parameters have been replaced."""
    distribution._batch_shape = batch_shape


def leave_uncompiled(kind: type, *names: str) -> None:
    """Make methods of a class run in Python where :func:`torch.compile` compiles their callers."""
    for name in names:
        method = getattr(kind, name)
        if not getattr(method, "_torchdynamo_disable", False):
            setattr(kind, name, torch.compiler.disable(method))
