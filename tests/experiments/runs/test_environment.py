"""The system is asked for memory once, not at every step."""

import ctypes
import platform
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from probattn.experiments.runs.environment import keep_memory

FAULTS = """
import resource, sys, torch
exec(sys.argv[1])
def step():
    return torch.zeros(2**24).add_(1).exp()
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PAGES = 5 * 2**26 // resource.getpagesize()
"""Of the tensors of all steps, each 64 MiB at least."""


def faults(how):
    """Return the number of pages that the system gave five steps."""
    command = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


HOW = {
    "itself": "from probattn.experiments.runs import environment; environment.keep_memory()",
    "command": "from probattn.experiments.cli import main; main.app = lambda **_: None\n"
    "try: main.main()\nexcept SystemExit: pass",
    "worker": "from probattn.experiments.runs import workers\n"
    "workers.threading.Thread.start = lambda _: 0; workers.set_up_worker(None)",
}


@pytest.fixture(scope="module")
def usual():
    return faults("pass")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
@pytest.mark.skipif(HUGE.exists() and "[always]" in HUGE.read_text(), reason="pages of another size")
@pytest.mark.parametrize(
    "how", [pytest.param(how, id=name, marks=[pytest.mark.slow] * (name == "worker")) for name, how in HOW.items()]
)
def test_steps_are_given_no_new_pages(how, usual):
    assert usual >= PAGES
    assert faults(how) < usual / 5  # the heap may grow once more


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_where_there_is_no_such_allocator_nothing_happens(monkeypatch, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert keep_memory() is None


def test_neither_maps_nor_trims_by_the_numbers_of_malloc_h(monkeypatch):
    asked = []
    library = SimpleNamespace(mallopt=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    keep_memory()
    assert dict(asked) == {-4: 0, -1: -1}  # M_MMAP_MAX, M_TRIM_THRESHOLD
