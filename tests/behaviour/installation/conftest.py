"""A fresh Python, and the modules of the packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def fresh_python(tmp_path_factory):
    """Function that returns the JSON that a fresh Python prints, which reads no settings of
    PyTorch."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTORCH_", "TORCH"))
    }

    def run(code, *, warnings):
        command = [sys.executable, "-W", warnings, "-c", code]
        folder = tmp_path_factory.mktemp("lean")
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=folder, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def modules():
    """Path of each module by its import name, by its folder of the root."""

    def name(path):
        parts = path.relative_to(ROOT).with_suffix("").parts
        return ".".join(
            ["probattn", *(part for part in parts if part not in ("probattn", "__init__"))]
        )

    folders = ("probattn", "models", "inference", "experiments")
    return {
        folder: {name(path): path for path in sorted((ROOT / folder).rglob("*.py"))}
        for folder in folders
    }
