"""Importing the library leaves the process as ``import torch, pyro`` does."""

import json
import os
import subprocess
import sys

STATE = """
import json, logging, os, random, signal, sys, threading, warnings

def state():
    import numpy, torch
    return {
        "warning filters": [repr(each) for each in warnings.filters],
        "displayed warnings": repr(warnings.showwarning),
        "environment": dict(os.environ),
        "random state": repr(random.getstate()),
        "numpy's random state": repr(numpy.random.get_state()),
        "numpy's errors": repr(numpy.geterr()),
        "torch's random state": repr(torch.get_rng_state().tolist()),
        "default dtype": repr(torch.get_default_dtype()),
        "threads of torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision of products": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "log handlers": [repr(type(each)) for each in logging.getLogger().handlers],
        "log level": logging.getLogger().level,
        "signals": [repr(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
        "hooks": [repr(each) for each in (sys.excepthook, threading.excepthook)],
        "recursion": sys.getrecursionlimit(),
        "running threads": [each.name for each in threading.enumerate()],
        "matplotlib": matplotlib_state(),
    }

def matplotlib_state():
    import matplotlib
    names = [name for name in matplotlib.rcParams if name != "backend"]  # reading it would choose one
    return [matplotlib.get_backend(auto_select=False), repr([(name, matplotlib.rcParams[name]) for name in names])]

random.seed(3)
"""

MODULES = ("probattn", "probattn.models", "probattn.inference", "probattn.experiments.cli.main")


def run(code):
    """Return the JSON that a fresh Python prints; warnings of libraries at import are none of ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "TORCH"))}
    command = [sys.executable, "-W", "default", "-c", STATE + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_imports_change_nothing_but_what_torch_and_pyro_change():
    """Those two change warning filters themselves, which users expect of them."""
    found = run(f"""
import importlib, torch, pyro
before, changed = state(), {{}}
for name in {MODULES!r}:
    importlib.import_module(name)
    now = state()
    changed |= {{f"{{key}} by {{name}}": [before[key], now[key]] for key in now if now[key] != before[key]}}
    before = now
print(json.dumps(changed))
""")
    assert found == {}


def test_importing_probattn_is_light_and_changes_no_setting_of_pyro():
    heavy = ("lightning", "lightning_fabric", "torchvision", "torchmetrics", "matplotlib", "sklearn", "typer")
    heavy += ("probattn.models", "probattn.inference", "probattn.experiments")
    found = run(f"""
import pyro
before = pyro.settings.get()
import probattn
loaded = [name for name in {heavy!r} if name in sys.modules]
import probattn.models, probattn.inference
print(json.dumps([loaded, before == pyro.settings.get(), "probattn.experiments" in sys.modules]))
""")
    assert found == [[], True, False]
