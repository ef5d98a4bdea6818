"""Conversion of plain PyTorch modules that contain layers of this library into PyroModules, which name their sites."""

from pyro.nn import PyroModule
from pyro.nn.module import to_pyro_module_
from torch import nn

from probattn.attention.base import ProbabilisticAttention
from probattn.torch_compat import own_modules


def to_pyro_module(module: nn.Module) -> None:
    """Convert a module to a PyroModule in place, keeping the order of its children, which Pyro would change."""
    children = dict(own_modules(module))
    to_pyro_module_(module, recurse=False)
    own_modules(module).clear()
    own_modules(module).update(children)


def name_sites_by_path(network: nn.Module) -> None:
    """Convert the plain modules above each layer of this library to PyroModules, in place.

    Their classes become subclasses of themselves, with the same parameters, children and forward method. Only then are
    the layers' sites named by their paths.
    """
    paths = [path for path, module in network.named_modules() if isinstance(module, ProbabilisticAttention)]
    above = {".".join(names[:depth]) for names in (path.split(".") for path in paths) for depth in range(len(names))}
    for path in sorted(above):
        module = network.get_submodule(path)
        if not isinstance(module, PyroModule):
            to_pyro_module(module)
