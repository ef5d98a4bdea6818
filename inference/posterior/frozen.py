"""Fixed models and prepared guides, and the check that a log joint is the density of a whole data
set."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn.evaluation_mode import evaluation_mode
from probattn.guides import Program, module_of
from probattn.inference.batches import check_loader, unpack_batch
from probattn.inference.objective import guide_checks
from probattn.messages import is_auxiliary


@contextmanager
def frozen(model: Program) -> Iterator[None]:
    """Context manager for evaluation mode without gradients for the parameters.

    Modes and ``requires_grad`` of all modules and parameters are restored on exit.
    """
    module = module_of(model)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with pyro.get_param_store().scope(), evaluation_mode(module):
        try:
            module.requires_grad_(False)
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)


def prepare(model: nn.Module, guide: nn.Module, data: Iterable) -> None:
    """Create the parameters of a guide that has none before a first run on the data, and check it.

    Raises:
        TypeError: ``data`` is no loader.
        ValueError: a guide of another model; no batches.
    """
    check_loader(data, "data")
    if guide_checks.is_lazy(guide):
        guide_checks.materialise(guide, unpack_batch(next(iter(data))).arguments())
    guide_checks.check(model, guide)


def check_unit_scales(model: Program, batch: tuple[Tensor, ...]) -> None:
    """Check that every sample site has scale 1: otherwise the log joint is that of a different
    posterior.

    Args:
        model: the model.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.

    Raises:
        ValueError: a batch that is scaled to a larger data set, a KL weight, or a ``z_o`` whose
            regulariser has a weight, unlike with ``collapsed=True``, or with ``alpha=1`` and
            ``regulariser_norm="example"``.
    """
    with frozen(model), torch.no_grad():
        trace = poutine.trace(model).get_trace(*batch)
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and not is_auxiliary(site):
            scale = torch.as_tensor(site["scale"], dtype=torch.float64)
            if (scale - 1).abs().max() > 1e-6:
                largest = scale.max().item()
                raise ValueError(f"site {name} has scale {largest:.3g}: pass the whole data set")
