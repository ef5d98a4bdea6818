"""Pyro programs of any kind: modules, functions, and either wrapped by handlers such as ``pyro.condition``."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pyro
import pyro.poutine as poutine
from torch import nn

from probattn.guides import Program, unwrapped


def as_module(program: Program) -> nn.Module:
    """Return the program if it is a module, else a :class:`ProgramModule` around it."""
    return program if isinstance(program, nn.Module) else ProgramModule(program)


class ProgramModule(nn.Module):
    """Module around a wrapped module, or around a function with ``pyro.param`` statements.

    The values of a function's statements stay in Pyro's parameter store, and are parameters of this module after
    :meth:`materialise`.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = self.wrapped = program
        inner = unwrapped(program)
        self.inner = inner if isinstance(inner, nn.Module) else None
        self.stored, self.has_run = nn.ParameterDict(), self.inner is not None
        self.constraints: dict[str, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        return self.program(*args, **kwargs)

    def materialise(self, *args: Any) -> None:
        """Run a function once, and make what its ``pyro.param`` statements have created parameters of this module."""
        with poutine.block(), poutine.trace(param_only=True) as run:
            self.program(*args)
        known = {id(parameter) for parameter in self.parameters()}
        store = pyro.get_param_store()
        for name, node in run.trace.nodes.items():
            value = node["value"].unconstrained()
            if id(value) in known:
                continue
            self.constraints[name] = store.get_state()["constraints"][name]
            if not isinstance(value, nn.Parameter):
                value = nn.Parameter(value.detach())
                store.set_state({"params": {name: value}, "constraints": {name: self.constraints[name]}})
            self.stored[name.replace(".", "/")] = value
        self.has_run = True


@contextmanager
def own_parameters(*programs: Program | None) -> Iterator[None]:
    """Run programs with their own parameters: those of other modules in Pyro's parameter store are not seen inside.

    Otherwise a ``PyroModule`` would take the values of another module whose parameters have the same names. A function
    that has not been materialised has all of the store.
    """
    params, constraints, all_known = {}, {}, True
    for program in programs:
        if isinstance(program, ProgramModule):
            params |= {name.replace("/", "."): value for name, value in program.stored.items()}
            constraints |= program.constraints
            all_known &= program.has_run
        elif program is not None:
            all_known &= isinstance(program, nn.Module) or isinstance(unwrapped(program), nn.Module)
    state = {"params": params, "constraints": constraints}
    with pyro.get_param_store().scope(state) if all_known else nullcontext():
        yield


def attribute(program: Program, name: str) -> Any:
    """Return an attribute of a program, or of the first module in it that has it, else None."""
    inner = unwrapped(program)
    for owner in (program, inner, *(inner.modules() if isinstance(inner, nn.Module) else ())):
        if hasattr(owner, name):
            return getattr(owner, name)
    return None


def device(*programs: Program | None) -> Any:
    """Return the device of the first parameter of any of these programs, or None without parameters."""
    for program in programs:
        inner = unwrapped(program)
        for parameter in inner.parameters() if isinstance(inner, nn.Module) else ():
            return parameter.device
    return None
