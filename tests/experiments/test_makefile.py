"""What `make demo` would run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "probattn demo"),
        (["LAYERS="], "probattn demo"),
        (["LAYERS=all"], "probattn demo --layers 'all'"),
        (["LAYERS=softmax, cgp"], "probattn demo --layers 'softmax, cgp'"),
    ],
)
def test_make_demo_passes_the_layers(arguments, expected):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LAYERS", "MAKEFLAGS", "MAKELEVEL")
    }
    command = ["make", "--dry-run", "demo", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip().endswith(f"/{expected}")
