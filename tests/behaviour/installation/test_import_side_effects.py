"""Importing the library is light, and leaves the process as ``import torch, pyro`` does."""

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


CODE = f"""
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
"""


def test_imports_are_light_and_change_nothing_but_what_torch_and_pyro_change(fresh_python):
    """Those two change warning filters themselves, which users expect of them."""
    # Warnings of libraries at import are none of ours.
    assert fresh_python(STATE + CODE, warnings="default") == [[], []]
