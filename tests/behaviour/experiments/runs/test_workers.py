"""Worker processes: results arrive whole, errors too, and nothing runs on after them."""

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probattn.experiments.runs.workers import run_in_workers

JOBS = ("first", "second", "third", "fourth")


def fail_or_stay(job):
    folder, name = job
    (folder / name).touch()
    if name == "first":
        raise ValueError("of the first job")
    time.sleep(300)


def test_after_an_error_workers_end_whatever_they_do(tmp_path):
    before = set(multiprocessing.active_children())
    with pytest.raises(ValueError, match="of the first job"):
        list(run_in_workers(fail_or_stay, [(tmp_path, name) for name in JOBS], workers=2))
    assert set(multiprocessing.active_children()) <= before
    # The worker that failed may take the third job before its parent hears of the error.
    assert not (tmp_path / "fourth").exists()


SCRIPT = """
import os, time
from probattn.experiments.runs.workers import run_in_workers
def job(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)
if __name__ == "__main__":
    list(run_in_workers(job, [300], workers=1))
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    """Workers that survive would continue training, in folders that the next command uses as
    well."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        status = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        assert status.exists()
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 30
    while status.exists() and " Z " not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not status.exists() or " Z " in status.read_text()
