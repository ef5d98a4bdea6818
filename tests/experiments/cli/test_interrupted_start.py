"""Ctrl-C while the command starts: one line and exit code 130, whatever is being imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(tmp_path, module, code, *arguments):
    """Exit code, stdout and stderr of a Python in which importing that module is interrupted."""
    folder = tmp_path / "interrupted"
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.argv[0] = 'probattn'\n{code}", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("module", ["torch", pytest.param("typer", marks=pytest.mark.slow)])
def test_an_interrupt_while_the_command_is_imported_is_one_line(tmp_path, module):
    assert run(tmp_path, module, "from probattn_command import main\nmain()", "presets") == (130, "", "stopped\n")


def test_an_interrupt_while_a_command_imports_what_it_needs_is_one_line(tmp_path):
    code, out, err = run(tmp_path, "pydantic", "from probattn_command import main\nmain()", "presets")
    assert (code, out) == (130, "")
    assert err.startswith("stopped")
    assert err.count("\n") == 1


def test_the_command_runs_through_its_entry_point(tmp_path):
    code, out, err = run(tmp_path, "unused", "from probattn_command import main\nmain()", "presets", "--help")
    assert code == 0, err
    assert "List the presets" in out
