"""Importing the library is light, and leaves the process as ``import torch, pyro`` does."""

import json
import os
import subprocess
import sys

STATE = """
import importlib, json, logging, os, random, sys, threading, warnings

def state():
    import numpy, torch
    return {
        "warning filters": [repr(filter) for filter in warnings.filters],
        "environment": dict(os.environ),
        "random states": repr((random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist())),
        "dtype and threads": repr((torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())),
        "precision": repr((torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())),
        "logging": repr((logging.getLogger().handlers, logging.getLogger().level)),
        "hooks": [repr(hook) for hook in (sys.excepthook, threading.excepthook, warnings.showwarning)],
    }

random.seed(3)
"""
MODULES = ("probattn", "probattn.models", "probattn.inference", "probattn.experiments.cli.main")
HEAVY = ("lightning", "lightning_fabric", "torchvision", "torchmetrics", "matplotlib", "sklearn", "typer", *MODULES[1:])


def run(code):
    """Return the JSON that a fresh Python prints; warnings of libraries at import are none of ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "TORCH"))}
    command = [sys.executable, "-W", "default", "-c", STATE + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_imports_are_light_and_change_nothing_but_what_torch_and_pyro_change():
    """Those two change warning filters themselves, which users expect of them."""
    changed, loaded = run(f"""
import torch, pyro
before, changed = [state(), pyro.settings.get()], []
for name in {MODULES!r}:
    importlib.import_module(name)
    if name == "probattn":
        loaded = [name for name in {HEAVY!r} if name in sys.modules]
    now = [state(), pyro.settings.get()]
    changed += [f"{{key}} by {{name}}" for old, new in zip(before, now) for key in new if new[key] != old[key]]
    before = now
print(json.dumps([changed, loaded]))
""")
    assert changed == []
    assert loaded == []
