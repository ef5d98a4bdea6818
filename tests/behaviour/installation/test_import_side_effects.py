"""Importing the library is light, and leaves the process as ``import torch, pyro`` does."""

import os
import random
import warnings

from probattn.inference.imports import without_side_effects

STATE = """
import importlib, json, logging, os, random, sys, threading, warnings

def state():
    import numpy, torch
    return {
        "warning filters": [repr(filter) for filter in warnings.filters],
        "environment": dict(os.environ),
        "random state of Python": repr(random.getstate()),
        "random state of NumPy": repr(numpy.random.get_state()),
        "random state of PyTorch": repr(torch.get_rng_state().tolist()),
        "dtype": repr(torch.get_default_dtype()),
        "threads": repr((torch.get_num_threads(), torch.is_grad_enabled())),
        "determinism": repr(torch.are_deterministic_algorithms_enabled()),
        "precision": repr(torch.get_float32_matmul_precision()),
        "logging": repr((logging.getLogger().handlers, logging.getLogger().level)),
        "hooks": repr((sys.excepthook, threading.excepthook, warnings.showwarning)),
    }

random.seed(3)
"""
MODULES = ("probattn", "probattn.models", "probattn.inference", "probattn.experiments.cli.main")
HEAVY = (
    "lightning",
    "lightning_fabric",
    "torchvision",
    "torchmetrics",
    "matplotlib",
    "sklearn",
    "typer",
    *MODULES[1:],
)


CODE = f"""
import torch, pyro
before, changed = [state(), pyro.settings.get()], []
for name in {MODULES!r}:
    importlib.import_module(name)
    if name == "probattn":
        loaded = [name for name in {HEAVY!r} if name in sys.modules]
    now = [state(), pyro.settings.get()]
    for old, new in zip(before, now):
        changed += [f"{{key}} by {{name}}" for key in new if new[key] != old[key]]
    before = now
print(json.dumps([changed, loaded]))
"""


def test_imports_are_light_and_change_nothing_but_what_torch_and_pyro_change(fresh_python):
    """Those two change warning filters themselves, which users expect of them."""
    # Warnings of libraries at import are none of ours.
    assert fresh_python(STATE + CODE, warnings="default") == [[], []]


def test_what_an_import_does_to_the_process_is_undone(monkeypatch):
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("REMOVED", "before")
    before = dict(os.environ), random.getstate(), list(warnings.filters)
    with without_side_effects():
        os.environ |= {"CHANGED": "by an import", "ADDED": "by an import"}
        del os.environ["REMOVED"]
        random.seed(7)
        warnings.simplefilter("ignore")
    assert (dict(os.environ), random.getstate(), list(warnings.filters)) == before
