"""A network as a program that runs where torch alone is installed."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from probattn.inference.io.atomic_write import atomic_write


def export(
    path: str | os.PathLike, network: nn.Module, *example: Tensor, files: Mapping[str, str] | None = None
) -> ExportedProgram:
    """Writes a network as a program of torch: ``torch.export.load(path).module()`` runs it without this library.

    The batch may have any size, and a text any length that the network takes (where no layer has a fixed number of
    tokens). A program cannot stop at what it sees: where the network would raise, the example concerned is NaN, and a
    covariance that needs jitter to be factorised gets the middle one of those that are tried here.

    Args:
        path: the file, ending in ``.pt2``; written beside and renamed.
        network: of :func:`mean_network` or :func:`predictor_network`, or a module around one.
        example: what it is called on, ``(x)`` or ``(x, mask)``, for shapes and dtypes: the values stay here.
        files: texts to lie in the file by name, for ``torch.export.load(path, extra_files=…)``.

    Raises:
        ValueError: a path with another ending.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"torch loads programs from files that end in .pt2, got {path}")
    varies = {0: Dim.DYNAMIC} | ({1: Dim.AUTO} if len(example) > 1 else {})
    program = torch.export.export(network, _blank(example), dynamic_shapes=(varies,) * len(example), strict=False)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    with atomic_write(path) as draft, draft.open("wb") as file:
        torch.export.save(program, file, extra_files=dict(files or {}))
    return program


def _blank(example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Ones in the example's place; sizes that are to vary are none that torch takes for fixed, 0 and 1.

    Nor is the batch's that of anything else, such as the draws, with which a comparison would hold by chance.
    """
    shapes = [list(part.shape) for part in example]
    for shape in shapes:
        shape[0] = 13
        if len(example) > 1:
            shape[1] = max(2, shape[1])
    return tuple(part.new_ones(shape) for part, shape in zip(example, shapes, strict=True))
