"""Search for the source of a NaN or Inf."""

from collections.abc import Mapping

from pyro.poutine import Trace
from torch import Tensor, nn

from probattn.functional import padding
from probattn.functional.errors import NumericalError


class NonFiniteError(NumericalError):
    """A NaN or Inf in data, weights or loss."""


class NonFiniteOutputError(NonFiniteError, ValueError):
    """Outputs of a network that are NaN or Inf."""


def find_non_finite(
    batch: tuple, modules: Mapping[str, nn.Module], traces: tuple[Trace, ...]
) -> str | None:
    """Return the first that holds a NaN or Inf: rows of the batch, else a parameter, else a site,
    else None.

    Args:
        batch: ``(x, y)`` or ``(x, y, mask)``, of which padding does not count; may be empty.
        modules: model and guide by name; may be empty.
        traces: traces of the step, in the order in which they were run; may be empty.
    """
    mask = batch[2] if len(batch) > 2 else None
    for name, value in zip(("inputs", "labels"), batch, strict=False):
        value = padding.zeroed(value, mask) if isinstance(value, Tensor) else value
        if _has_non_finite(value):
            rows = (~value.isfinite()).flatten(1).any(1) if value.dim() > 1 else ~value.isfinite()
            return (
                f"the {name}, rows {rows.nonzero().flatten().tolist()[:10]} of the batch: clean "
                "the data"
            )
    for role, module in modules.items():
        for name, parameter in module.named_parameters():
            if _has_non_finite(parameter):
                return f"parameter {name} of the {role}: lower lr, or set clip_norm"
    for trace in traces:
        for name, site in trace.nodes.items():
            if site["type"] == "sample" and any(
                map(_has_non_finite, (site["value"], site.get("log_prob")))
            ):
                return f"site {name}: lower lr, set clip_norm, or check the layer's scale"
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if that line is empty.

    Pyro appends the shapes of the trace to the message of an error, even to an empty one.
    """
    return str(error).partition("\n")[0].strip() or type(error).__name__


def _has_non_finite(value: object) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())
    )
