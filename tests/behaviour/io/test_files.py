"""A file appears whole or not at all, also on a full disk, and a folder is locked for one
process."""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
import torch
from full_disk import check_refused
from torch import nn

from probattn.inference import export, save, save_safetensors
from probattn.inference.io.files import LOCK, locked, write_bytes


class Network(nn.Module):
    """Network of a megabyte, which no buffer holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("large", torch.zeros(2**18))

    def forward(self, x):
        return {"probs": x + self.large[:2]}


WRITERS = {
    "checkpoint": lambda path: save(path, Network()),
    "safetensors": lambda path: save_safetensors(path, Network()),
    "bytes": lambda path: write_bytes(path, 200 * b"text"),
    "program": lambda path: export(
        path, Network(), torch.ones(3, 2)
    ),  # PyTorch's writer ended the process
}


@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_no_part_of_a_file_stays_and_old_ones_do(tmp_path, name):
    sizes = (0, 2**20) if name == "program" else (0, 100)
    assert check_refused(lambda: WRITERS[name](tmp_path / name), tmp_path, sizes=sizes) == {name}


@pytest.mark.parametrize("name", ["checkpoint", "safetensors", "program"])
def test_an_interruption_midway_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, name):
    def interrupt(number):
        raise KeyboardInterrupt

    path = tmp_path / name
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        WRITERS[name](path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [name]


def test_a_file_is_on_disk_before_it_takes_the_old_ones_place_and_two_at_once_do_not_meet(
    tmp_path, monkeypatch
):
    path, replace, synced = tmp_path / "file.txt", Path.replace, []
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", synced.append)

    def rename(draft, target):
        assert (draft.read_text(), path.read_text(), len(synced)) == ("new", "old", 1)
        monkeypatch.setattr(Path, "replace", replace)
        write_bytes(path, b"of another process")
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", rename)
    write_bytes(path, b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_refused_until_the_first_is_gone_however_it_ends(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path / LOCK]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(filelock.Timeout, match=str(tmp_path)), locked(tmp_path):
            pass
        process.kill()
        process.wait()
    with contextlib.suppress(KeyboardInterrupt), locked(tmp_path):
        refused = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert "BlockingIOError" in refused.stderr
        raise KeyboardInterrupt
    assert (
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).returncode
        == 0
    )


def test_another_thread_is_refused_and_the_same_one_may_enter_again(tmp_path):
    def attempt(folder):
        with locked(folder):
            pass

    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path), locked(tmp_path):
            for folder in (tmp_path, tmp_path / ".." / tmp_path.name):
                with pytest.raises(filelock.Timeout):
                    pool.submit(attempt, folder).result()
        pool.submit(attempt, tmp_path).result()
