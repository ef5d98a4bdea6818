"""The system is asked for memory once, not at every step."""

import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

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
