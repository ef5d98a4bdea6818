"""Whether a Pyro module keeps its parameters to itself."""

from pyro.nn import PyroModule
from torch import nn


def check_local(module: nn.Module) -> None:
    """Refuses Pyro modules that were built while Pyro kept parameters in its global store.

    Raises:
        RuntimeError: naming the module and the mend.
    """
    for name, part in module.named_modules():
        if isinstance(part, PyroModule) and not hasattr(part._pyro_context, "param_state"):
            raise RuntimeError(
                f"{type(part).__name__} {name!r} was built before `import probattn` took effect (Pyro's setting "
                "module_local_params was off), so its parameters would live in Pyro's global store; import "
                "probattn first and build it again"
            )
