"""Access to private parts of Pyro: a new version that moves them breaks this file and its tests alone.

Methods of handlers (``_pyro_sample``, ``_pyro_post_sample``, ``_pyro_param``, ``_pyro_post_param``) are Pyro's protocol
for effect handlers and may be defined anywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
from pyro.nn import PyroModule
from pyro.nn import module as pyro_module
from pyro.poutine import runtime
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

HANDLER_STACK: Sequence[Messenger] = runtime._PYRO_STACK
"""Active effect handlers, the outermost first: Pyro's own list, which changes as handlers are entered and left."""

PREDICTIVE_PLATE = "_num_predictive_samples"
"""Name of the plate that ``Predictive(parallel=True)`` puts around a model."""


@contextmanager
def hidden_handlers(is_hidden: Callable[[Messenger], bool]) -> Iterator[None]:
    """Take the handlers that a predicate selects off Pyro's stack; they return in their places on exit."""
    active = list(HANDLER_STACK)
    runtime._PYRO_STACK[:] = [handler for handler in active if not is_hidden(handler)]
    try:
        yield
    finally:
        runtime._PYRO_STACK[:] = active


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the active handlers, and the dimensions of their plates, after any exception inside."""
    handlers, dims = list(HANDLER_STACK), list(runtime._DIM_ALLOCATOR._stack)
    try:
        yield
    except BaseException:
        runtime._PYRO_STACK[:] = handlers
        runtime._DIM_ALLOCATOR._stack[:] = dims
        raise


def clear_handlers() -> None:
    """Remove all active handlers and the dimensions of their plates."""
    runtime._PYRO_STACK.clear()
    runtime._DIM_ALLOCATOR._stack.clear()


def is_subsample(fn: Any) -> bool:
    """Return True for the "distribution" of the site at which a plate draws its subsample of indices."""
    return isinstance(fn, _Subsample)


def trace_arguments(trace: Trace) -> tuple[tuple, dict[str, Any]]:
    """Return the positional and keyword arguments of the program that a trace recorded; none before it has run."""
    node = trace.nodes.get("_INPUT", {"args": (), "kwargs": {}})
    return node["args"], node["kwargs"]


def mask_of(distribution: dist.MaskedDistribution) -> Tensor | bool:
    """Return the mask of a masked distribution."""
    return distribution._mask


def module_path(module: nn.Module) -> str | None:
    """Return a PyroModule's path below its root, ``""`` for a root itself, and None for a plain module."""
    return getattr(module, "_pyro_name", None)


def full_name(module: PyroModule, name: str) -> str:
    """Return the name of a site or parameter: the path of its module, and its own name.

    Raises:
        AssertionError: before the root has run for the first time, when paths may still change.
    """
    return module._pyro_get_fullname(name)


def naming_scope(module: PyroModule) -> AbstractContextManager:
    """Return the context that a call of a PyroModule runs in, for use outside a call: names are defined inside."""
    return module._pyro_context


def is_inside_call(module: PyroModule) -> bool:
    """Return True inside a call of the module's root."""
    return bool(module._pyro_context.active)


def call_inside(module: PyroModule, *args: Any, **kwargs: Any) -> Any:
    """Call a module inside a call of its root, without entering the naming scope again as Pyro does.

    At that scope torch.compile would stop, and leave to Python all that runs inside.
    """
    return super(PyroModule, module).__call__(*args, **kwargs)


def allow_renaming(network: nn.Module) -> None:
    """Let a network that has run alone become part of another: Pyro fixes the names of sites at the first run.

    A guide that was built before knows its sites by their old names.
    """
    for module in network.modules():
        if isinstance(module, PyroModule):
            module._pyro_context.used = False


class _NoEffects:
    """Stands in for the context of a PyroModule's calls: nothing is active, so attributes are read without effects."""

    active, used = 0, True

    def __init__(self) -> None:
        self.param_state: dict[str, dict] = {"params": {}, "constraints": {}}

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def remove_effects(network: nn.Module) -> None:
    """Turn the PyroModules of a network, in place, into modules whose parameters and calls do not involve Pyro."""
    parts = [module for module in network.modules() if isinstance(module, PyroModule)]
    for module in parts:
        for name in list(module._modules):
            getattr(module, name)  # names a child that has not run yet
    context = _NoEffects()
    for module in parts:
        vars(module)["_pyro_context"] = context


def has_no_effects(module: nn.Module) -> bool:
    """Return True for modules that :func:`remove_effects` has changed."""
    return isinstance(vars(module).get("_pyro_context"), _NoEffects)


def has_pyro_samples(module: nn.Module) -> bool:
    """Return True for a PyroModule that holds a ``PyroSample`` itself."""
    return isinstance(module, PyroModule) and bool(module._pyro_samples)


def constrained(unconstrained: Tensor, constraint: Any) -> Tensor:
    """Return the value of a ``PyroParam``; for positive ones PyTorch would also multiply by 1 and add 0."""
    return unconstrained.exp() if constraint is constraints.positive else transform_to(constraint)(unconstrained)


class AttributeReads:
    """Mixin, in front of ``PyroModule``, with a method for each kind of attribute that is read during a call.

    Each defaults to what Pyro does. Outside a call, where names are undefined, values are returned without effects.
    """

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__
        if name in state.get("_pyro_params", ()):
            constraint, event_dim = state["_pyro_params"][name]
            unconstrained = state["_parameters"][f"{name}_unconstrained"]
            if state["_pyro_context"].active:
                return self._read_pyro_param(name, unconstrained, constraint, event_dim)
            return constrained(unconstrained, constraint)
        if name in state.get("_parameters", ()) and not name.endswith("_unconstrained"):
            parameter = state["_parameters"][name]
            if parameter is not None and state["_pyro_context"].active:
                return self._read_parameter(name, parameter)
            return parameter
        if name in state.get("_pyro_samples", ()):
            return self._read_pyro_sample(name, state["_pyro_samples"][name])
        child = state.get("_modules", {}).get(name)
        if isinstance(child, PyroModule):
            named = child._pyro_context is state["_pyro_context"]  # torch.compile would compile for each name
            return child if named else super().__getattr__(name)  # which names it
        if child is not None:
            return self._read_module(name, child) if state["_pyro_context"].active else child
        return super().__getattr__(name)

    def _read_by_pyro(self, name: str) -> Any:
        """Read an attribute as ``PyroModule`` does, with all effects."""
        return super().__getattr__(name)

    def _read_parameter(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Read an ``nn.Parameter``."""
        return self._read_by_pyro(name)

    def _read_pyro_param(self, name: str, unconstrained: Tensor, constraint: Any, event_dim: int | None) -> Tensor:
        """Read a ``PyroParam``."""
        return self._read_by_pyro(name)

    def _read_pyro_sample(self, name: str, prior: Any) -> Tensor:
        """Read a ``PyroSample``, also outside a call."""
        return self._read_by_pyro(name)

    def _read_module(self, name: str, child: nn.Module) -> nn.Module:
        """Read a child that is a plain module."""
        return self._read_by_pyro(name)


def has_module_local_params() -> bool:
    """Return Pyro's setting ``module_local_params``."""
    return pyro_module._MODULE_LOCAL_PARAMS


def add_param_state(module: PyroModule) -> None:
    """Give a module that was built without ``module_local_params`` the state that it needs under that setting."""
    if not hasattr(module._pyro_context, "param_state"):
        module._pyro_context.param_state = {"params": {}, "constraints": {}}


def is_param_state_missing(error: AttributeError) -> bool:
    """Return True for the error of a module that runs under ``module_local_params`` without its state."""
    return "param_state" in str(error)


def stored_params() -> Mapping[str, Tensor]:
    """Return the unconstrained tensors in Pyro's parameter store, by name."""
    return pyro.get_param_store()._params


def store_param(name: str, parameter: nn.Parameter) -> None:
    """Put a parameter in the place of the unconstrained tensor of that name in Pyro's parameter store."""
    store = pyro.get_param_store()
    store._params[name], store._param_to_name[parameter] = parameter, name


class TracePairs:
    """Mixin, in front of one of Pyro's ELBOs, with names for its estimation from pairs of traces."""

    def trace_pairs(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> Iterator[tuple[Trace, Trace]]:
        """Yield the traces of model and guide for each particle."""
        return self._get_traces(model, guide, args, kwargs)

    def trace_pair(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        """Run guide and model once and return the traces of model and guide; may be overridden."""
        return super()._get_trace(model, guide, args, kwargs)

    def surrogate_loss(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        """Return Pyro's loss of one particle, whose gradient includes score-function terms."""
        return self._differentiable_loss_particle(model_trace, guide_trace)[1]

    def _get_trace(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        return self.trace_pair(model, guide, args, kwargs)
