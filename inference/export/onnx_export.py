"""Export of networks to ONNX files, which run without PyTorch."""

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from probattn.inference.export.torch_export import trace
from probattn.inference.imports import extra, without_side_effects
from probattn.inference.io.files import write_bytes

WITHOUT_ONNX = re.compile(r"aten\.(\w*(?:cholesky|solve|svd|eig|qr|linalg_lu|linalg_inv)\w*)")
"""PyTorch's factorisations and solvers, none of which ONNX has."""


def export_onnx(
    path: str | os.PathLike, network: nn.Module, *example: Tensor, metadata: Mapping[str, str] | None = None
) -> None:
    """Export a network to ONNX: any runtime of that format runs it, and it cannot contain code.

    Inputs are ``x`` and, for texts, ``mask``; outputs have the names of the network's. Sizes are as free as those of
    :func:`~probattn.inference.export`, and values that would be an error in Python are NaN.

    Layers that factorise matrices of their inputs in each pass cannot be exported, since ONNX has no Cholesky factor
    and no triangular solver: SGPA, CGP, and KEP-SVGP with ``projection="svd"`` or a residual. Softmax, kernel and other
    KEP-SVGP attention can.

    Args:
        path: the file, ending in ``.onnx``; written atomically, with its digest in the metadata.
        network: of :func:`~probattn.inference.mean_network` or :func:`~probattn.inference.predictor_network`, or a
            module around one.
        example: example arguments ``(x)`` or ``(x, mask)``, for shapes and dtypes; their values are not exported.
        metadata: texts to store in the file by name, in the model's ``metadata_props``.

    Raises:
        MissingExtraError: ``onnx`` or ``onnxscript`` is not installed.
        ValueError: a path with another suffix, or operations that ONNX does not have.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"the path of an ONNX file must end in .onnx, got {path}")
    with without_side_effects(), extra("onnx", needed_by="export to ONNX"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    program = trace(network, *example)
    _check_operations(program)
    outputs = list(network(*example))
    with warnings.catch_warnings(), _without_log("onnxscript"):
        warnings.simplefilter("ignore")  # about PyTorch's own use of its modules
        converted = torch.onnx.export(
            program,
            input_names=["x", "mask"][: len(example)],
            output_names=outputs,
            custom_translation_table={
                torch.ops.aten.sort.stable: _stable_sort,
                torch.ops.aten.special_entr.default: _entropy_terms,
            },
            dynamo=True,
            verbose=False,
        )
    model = converted.model
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # names of our modules, and stack traces with paths of this machine
    model.metadata_props.update(metadata or {})
    write_bytes(path, converted.model_proto.SerializeToString())


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """Discard a library's messages up to warnings, such as those on constants that its optimiser cannot compute."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _stable_sort(values: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Translate PyTorch's stable sort, which its exporter lacks: TopK of ONNX orders equal values by their indices."""
    from onnxscript import opset18

    size = opset18.Gather(opset18.Shape(values), opset18.Constant(value_ints=[dim]))
    return opset18.TopK(values, size, axis=dim, largest=int(descending), sorted=1)


def _check_operations(program: ExportedProgram) -> None:
    names = {name for node in program.graph.nodes for name in WITHOUT_ONNX.findall(str(node.target))}
    if names:
        raise ValueError(
            f"ONNX has no {', '.join(sorted(names))}, which this network's attention computes from its inputs in each "
            "pass: write a program (.pt2)"
        )


def _entropy_terms(probs: Any) -> Any:
    """Translate −p log p of probabilities, which the exporter of PyTorch 2.11 fails to decompose; NaN stays NaN."""
    from onnxscript import opset18

    zero = opset18.CastLike(0.0, probs)
    return opset18.Where(probs > zero, -probs * opset18.Log(probs), probs * zero)
