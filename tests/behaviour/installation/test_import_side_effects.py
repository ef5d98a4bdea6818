"""Importing the library is light, and leaves the process as ``import torch, pyro`` does; its names
are imported when they are first used."""

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
    exec(f"from {{name}} import *", {{}})  # all public names, which are imported when they are used
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


HELP = """
import json, sys
from probattn.experiments.cli.main import COMMANDS, main

calls = [["--help"], ["--version"], ["tran"], ["train", "--no-such-option"]]
calls += [[command.__name__.replace("_", "-"), "--help"] for command in COMMANDS]
statuses = []
for call in calls:
    sys.argv = ["probattn", *call]
    try:
        main()
    except SystemExit as end:
        statuses.append(end.code)
print()
print(json.dumps([statuses, [name for name in ("torch", "pyro", "numpy") if name in sys.modules]]))
"""


def test_help_and_errors_of_usage_wait_for_no_library_of_numbers(fresh_python):
    statuses, loaded = fresh_python(HELP, warnings="default")
    assert statuses[:4] == [0, 0, 2, 2]
    assert set(statuses[4:]) == {0}
    assert loaded == []


ALONE = """
import importlib, json
import probattn, probattn.inference, probattn.models

# Modules with the name of what they define.
importlib.import_module("probattn.draws")
importlib.import_module("probattn.local_sites")
importlib.import_module("probattn.inference.export")
same_names = [probattn.draws, probattn.local_sites, probattn.inference.export]
missing = []
for package in (probattn, probattn.models, probattn.inference):
    missing += sorted(set(package.__all__) - set(dir(package)))
    missing += [name for name in dir(package) if not hasattr(package, name)]
print(json.dumps([all(map(callable, same_names)), missing, hasattr(probattn, "nothing")]))
"""


def test_a_public_name_is_found_whatever_was_imported_before(fresh_python):
    assert fresh_python(ALONE, warnings="default") == [True, [], False]


MODULES_ALONE = """
import json, probattn

found = [
    probattn.functional.gaussian,
    probattn.attention.softmax,
    probattn.families,
    probattn.inference.decisions.conformal,
]
print(json.dumps([module.__name__ for module in found]))
"""


def test_a_module_is_found_after_the_import_of_the_library_alone(fresh_python):
    names = [
        "probattn.functional.gaussian",
        "probattn.attention.softmax",
        "probattn.families",
        "probattn.inference.decisions.conformal",
    ]
    assert fresh_python(MODULES_ALONE, warnings="default") == names


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
