"""Export of networks to programs that need only PyTorch to run."""

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from probattn.functional import errors
from probattn.inference.io.files import write_bytes
from probattn.inference.prediction.predictor import Predictor
from probattn.pyro_internals import without_validation
from probattn.threads import one_thread_at_a_time


def export(
    path: str | Path, network: nn.Module, *example: Tensor, files: Mapping[str, str] | None = None
) -> ExportedProgram:
    """Export a network with ``torch.export``: ``torch.export.load(path).module()`` runs it without
    this library.

    The program takes any batch size, and texts of any length that the network takes (if no layer
    has a fixed number of tokens). It cannot raise errors that depend on values: the affected
    examples are NaN instead, and a covariance that needs jitter for its Cholesky factor gets the
    middle one of the usual sequence.

    Warning:
        A ``.pt2`` file from elsewhere can run code when ``torch.export.load`` reads it. To share a
        model, share its weights (:func:`~probattn.inference.save_safetensors`) and its settings.

    Args:
        path: the file, usually ending in ``.pt2``; written atomically.
        network: of :func:`mean_network` or :func:`predictor_network`, or a module around one.
        example: example arguments ``(x)`` or ``(x, mask)``, for shapes and dtypes; their values are
            not exported.
        files: texts to store in the file by name, for ``torch.export.load(path, extra_files=…)``.

    Raises:
        TypeError: a predictor inside that no program can hold; says what to export in its place.
    """
    program = trace(network, *example)
    archive = io.BytesIO()  # in memory: on a full disk PyTorch's writer ends the process
    torch.export.save(program, archive, extra_files=dict(files or {}))
    write_bytes(path, archive.getvalue())
    return program


@one_thread_at_a_time
def trace(network: nn.Module, *example: Tensor) -> ExportedProgram:
    """Return a network as a program of any batch size, and of any length of texts; arguments are
    those of ``export``.

    It contains no values of the example and no paths of this machine.
    """
    for module in network.modules():
        if isinstance(module, Predictor) and module.not_exported:
            name = type(module).__name__
            raise TypeError(f"{name} cannot be exported: {module.not_exported}")
    dynamic = {0: Dim.DYNAMIC} | ({1: Dim.AUTO} if len(example) > 1 else {})
    with errors.branch_free(), without_validation():
        program = torch.export.export(
            network, _ones(example), dynamic_shapes=(dynamic,) * len(example), strict=False
        )
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of this machine
    return program


def _ones(example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return ones in the shapes of the example, with dynamic sizes other than 0 and 1, which torch
    would specialise.

    The batch size 13 differs from other sizes, such as the number of draws, so that no comparison
    holds by chance.
    """
    ones = []
    for tensor in example:
        shape = [13, *tensor.shape[1:]]
        if len(example) > 1:
            shape[1] = max(2, shape[1])
        ones.append(tensor.new_ones(shape))
    return tuple(ones)
