"""The Makefile: layers of the demo, and installation when the list of source files changes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("probattn", "models", "inference", "experiments")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments, folder):
    """Run make without the variables of an outer make, and return its output."""
    outer = ("LAYERS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


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
    assert make("--dry-run", "demo", *arguments, folder=ROOT).splitlines()[-1].strip().endswith(f"/{expected}")


def test_make_installs_again_when_the_list_of_files_changes(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (*(f"{folder}/__init__.py" for folder in FOLDERS), "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "probattn"):  # print their arguments instead
        (programs / name).write_text('#!/bin/sh\necho "arguments: $*"\nmkdir -p build\n', encoding="utf-8")
        (programs / name).chmod(0o755)

    def installations():
        return make("demo", folder=tmp_path).count("arguments: -m pip install")

    added = tmp_path / "models" / "added.py"
    assert installations() > 0
    assert installations() == 0
    (tmp_path / "models" / "__init__.py").write_text("changed = True", encoding="utf-8")
    assert installations() == 0
    added.write_text("", encoding="utf-8")
    assert [installations(), installations()] == [1, 0]
    added.unlink()
    assert [installations(), installations()] == [1, 0]
    (tmp_path / "build").rmdir()
    assert [installations(), installations()] == [1, 0]


def test_make_demo_installs_what_the_demo_needs_and_make_test_what_the_tests_need():
    """Each has a stamp of its own, so that neither waits for the other's packages."""
    demo, test = (make("--dry-run", "--always-make", goal, folder=ROOT) for goal in ("demo", "test"))
    assert "'.[cli]'" in demo
    assert "'.[dev]'" not in demo
    assert "'.[dev]'" in test
