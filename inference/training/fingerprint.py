"""Fingerprint of the data, loaders, model and guide of a run, by which a resumed run is recognised as the same run."""

import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler

from probattn.inference.distributed import random_state
from probattn.inference.distributed.collectives import world
from probattn.inference.distributed.loader_parts import attributes
from probattn.inference.io.digest import digest
from probattn.inference.programs import attribute
from probattn.inference.training.probe import Probe, as_array, content_digest, is_plain

_MAX_ARRAYS = 32
_CHANGING = "changes in training"
_LOADER_SETTINGS = ("batch_size", "drop_last", "shuffle", "augment", "padding", "num_data")
_LISTS = ("dataset", "sampler", "batch_sampler")
_NOT_COMPARED = {"training", "name_or_path"}


class Fingerprint(NamedTuple):
    """Data, loaders and settings of a model that a run is trained with, as values by name.

    Args:
        modules: of each module of model and guide its type, public attributes that are numbers, strings or tuples of
            them, evaluation mode, and parameters that are not trained; and ``num_data``.
        loaders: of each loader its settings, length and number of examples; types and attributes of its samplers; types
            of its random number generators; and digests of the tensors and arrays that it refers to, and of the lists
            of numbers in data set and sampler (see :func:`~probattn.inference.distributed.loader_parts.find_parts`).
        batches: digests of each loader's first batch under a fixed seed, which covers part of any other data set, its
            transforms and its order.
        environment: versions of PyTorch and NumPy, hardware, and numbers of threads and of processes.
    """

    modules: dict[str, Any]
    loaders: dict[str, Any]
    batches: dict[str, Any]
    environment: dict[str, Any]

    def differences(self, saved: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
        """Return the differences to a saved fingerprint that make the run another run, and those of the environment.

        Batches are compared in the same environment only: their floats may differ in another one.

        Args:
            saved: fingerprint of the checkpoint, as a mapping.
        """
        now = self._asdict()
        found = {part: _differences(saved[part], now[part]) for part in now}
        batches = [] if found["environment"] else found["batches"]
        return found["modules"] + found["loaders"] + batches, found["environment"]

    def after_training(self, model: nn.Module, guide: nn.Module) -> "Fingerprint":
        """Return the fingerprint without the attributes of modules that have changed since it was taken."""
        now = of_modules(model, guide)
        kept = {
            name: value if repr(value) == repr(now.get(name)) else _CHANGING for name, value in self.modules.items()
        }
        return self._replace(modules=kept)


def fingerprint(
    model: nn.Module, guide: nn.Module, probes: Mapping[str, Probe], *, device: torch.device
) -> Fingerprint:
    """Take the fingerprint of a run.

    Args:
        model, guide: materialised modules.
        probes: probes of the loaders by name.
        device: device of the training.
    """
    loaders, batches, workers = {}, {}, {}
    for name, probe in probes.items():
        loaders |= {f"{name}.{key}": value for key, value in of_loader(probe).items()}
        batches |= {f"{name}: {key}": value for key, value in probe.batch.items()}
        workers[f"{name}.num_workers"] = getattr(probe.loader, "num_workers", 0)
    return Fingerprint(of_modules(model, guide), loaders, batches, _environment(device) | workers)


def of_modules(model: nn.Module, guide: nn.Module) -> dict[str, Any]:
    """Return the settings of the modules of a model and its guide (see :class:`Fingerprint`)."""
    found = {"num_data": attribute(model, "num_data")}
    for part, whole in {"model": model, "guide": guide}.items():
        for path, module in whole.named_modules(prefix=part):
            found[path] = type(module).__name__
            if not module.training:
                found[f"{path}.training"] = False
            own = {name: value for name, value in vars(module).items() if name not in _NOT_COMPARED}
            found |= {f"{path}.{name}": value for name, value in own.items() if name[0] != "_" and is_plain(value)}
        frozen = (name for name, parameter in whole.named_parameters(prefix=part) if not parameter.requires_grad)
        found |= {f"{name}.requires_grad": False for name in frozen}
    return found


def of_loader(probe: Probe) -> dict[str, Any]:
    """Return the settings and the digests of the data of a loader (see :class:`Fingerprint`)."""
    loader, parts = probe.loader, probe.parts
    found = {"batches": _length(loader), "examples": _length(getattr(loader, "dataset", None))}
    if getattr(loader, "batch_sampler", None) is None:
        found |= {key: getattr(loader, key) for key in _LOADER_SETTINGS if hasattr(loader, key)}
    for path, part in parts.items():
        if isinstance(part, Sampler) or path in ("sampler", "batch_sampler"):
            found[path] = type(part).__name__
            found |= {f"{path}.{key}": value for key, value in attributes(part).items()}
    found |= {path: type(each).__name__ for path, each in random_state.generators(parts).items()}
    digests = {path: content_digest(part) for path, part in parts.items() if _is_data(path, part)}
    found |= digests if len(digests) <= _MAX_ARRAYS else {"data": digest(digests)}
    kept = {key: value for key, value in found.items() if value is not None and is_plain(value)}
    return {key: value for key, value in kept.items() if key not in probe.changing}


def _is_data(path: str, part: Any) -> bool:
    """Return True for numerical tensors and arrays, and for lists of numbers in a data set or a sampler."""
    is_list = isinstance(part, list | tuple | range)
    return as_array(part) is not None and not (is_list and path.partition(".")[0] not in _LISTS)


def _environment(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{device.type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "processes": world().size,
    }


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**saved, **now} if saved.get(name) != _CHANGING]
    pairs = {name: [repr(each[name]) if name in each else "none" for each in (saved, now)] for name in names}
    return [
        f"{name}: other content" if all(map(_is_digest, pair)) else f"{name}: {pair[0]} → {pair[1]}"
        for name, pair in pairs.items()
        if pair[0] != pair[1]
    ]


def _is_digest(text: str) -> bool:
    return len(text) == len(digest(None)) + 2


def _length(thing: Any) -> int | None:
    return len(thing) if hasattr(thing, "__len__") else None
