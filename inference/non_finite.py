"""Search for the source of a NaN or Inf."""

from collections.abc import Iterator, Mapping

from pyro.poutine import Trace
from torch import Tensor, nn

from probattn import NumericalError
from probattn.functional import padding


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
        if isinstance(value, Tensor):
            is_finite = padding.zeroed(value, mask).isfinite().reshape(len(value), -1).all(1)
            if rows := (~is_finite).nonzero().flatten().tolist():
                return f"the {name}, rows {rows[:10]} of the batch: clean the data"
    values = _values(modules, traces)
    return next((source for source, value in values if _has_non_finite(value)), None)


def in_gradients(module: nn.Module) -> str | None:
    """Return the first parameter of a module whose gradient holds a NaN or Inf, else None."""
    for name, parameter in module.named_parameters():
        if _has_non_finite(parameter.grad):
            return f"the gradient of {name}"
    return None


def _values(
    modules: Mapping[str, nn.Module], traces: tuple[Trace, ...]
) -> Iterator[tuple[str, object]]:
    """Yield parameters, and values and densities of sites, each after its name and advice."""
    for role, module in modules.items():
        for name, parameter in module.named_parameters():
            yield f"parameter {name} of the {role}: lower lr, or set clip_norm", parameter
    for trace in traces:
        for name, site in trace.nodes.items():
            if site["type"] == "sample":
                source = f"site {name}: lower lr, set clip_norm, or check the layer's scale"
                yield source, site["value"]
                yield source, site.get("log_prob")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if that line is empty.

    Pyro appends the shapes of the trace to the message of an error, even to an empty one.
    """
    return str(error).partition("\n")[0].strip() or type(error).__name__


def _has_non_finite(value: object) -> bool:
    return isinstance(value, Tensor) and not bool(value.isfinite().all())
