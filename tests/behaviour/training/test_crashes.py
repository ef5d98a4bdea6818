"""A run killed at any line, or out of disk space at any byte, resumes as if nothing had happened.

This file is run as a program that forks a process per crash, which saves the time of importing.
"""

import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import small_fit
import torch

from probattn.inference import TrainOptions, fit
from probattn.inference.io import checkpoint, files
from probattn.inference.training import fit as training
from probattn.inference.training import run_log, step, trainer

TRACED = {module.__file__ for module in (checkpoint, files, run_log, step, trainer, training)}
FILES = [".lock", "best.pt", "last.pt", "log.jsonl"]


def train(out):
    options = TrainOptions(epochs=2, log_every=1, num_samples=1, accelerator="cpu")
    fit(*small_fit.build(), options=options, out=out, resume=True, progress=False)


def child(function, *arguments):
    """Run a function in a fork of this process; return its exit status, negative if a signal ended
    it."""
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(
                1
            )  # makes PyTorch's thread pool of this fork, before other threads race to it
            function(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at_lines(act):
    """Call ``act`` with the position of each line of the traced files that is run from now on."""

    def local(frame, event, _):
        if event == "line":
            act(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return local

    sys.settrace(lambda frame, *_: local if frame.f_code.co_filename in TRACED else None)


def remember_lines(out, path):
    places = []
    at_lines(places.append)
    train(out)
    sys.settrace(None)
    path.write_text(json.dumps(places))


def killed_at_line(out, number):
    left = iter(range(number))
    at_lines(lambda place: next(left, None) is None and die())
    train(out)


def killed_in_file(out, number):
    """Die when half of the checkpoint of that number is written."""
    write, left = Path.write_bytes, iter(range(number))

    def half(path, content):
        if next(left, None) is None:
            write(path, content[: len(content) // 2])
            die()
        write(path, content)

    Path.write_bytes = half
    train(out)


def out_of_space(out, size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(OSError, match="File too large"):
        train(out)
    assert {path.name for path in out.iterdir()} <= set(FILES)


def content(folder):
    """Return what a run has left, without times, in a form that can be compared."""
    checkpoints = [checkpoint.read(folder / name) for name in ("best.pt", "last.pt")]
    for unused in (
        "python",
        "numpy",
    ):  # random states that a fork seeds anew, and that this run does not use
        del checkpoints[1]["extra"]["random"][0][unused]
    log = small_fit.untimed(run_log.read_log(folder / "log.jsonl"))
    return repr((log, small_fit.flat(checkpoints), sorted(os.listdir(folder))))


def main(root, amount):
    """Print the crashes after which a run did not resume exactly."""
    torch.set_num_threads(1)
    importlib.import_module("lightning_fabric")  # once for all forks
    assert child(remember_lines, root / "whole", root / "lines") == 0
    places = json.loads((root / "lines").read_text())
    lines = sorted({place: number for number, place in enumerate(places)}.values())
    assert len(lines) > 100
    writes, sizes = range(3), range(0, (root / "whole" / "last.pt").stat().st_size, 1000)
    if amount == "some":
        lines, sizes, writes = (
            random.Random(0).sample(lines, 2),
            random.Random(0).sample(sizes, 1),
            range(1, 2),
        )
    crashes = [(killed_at_line, number, -signal.SIGKILL) for number in lines]
    crashes += [(killed_in_file, number, -signal.SIGKILL) for number in writes]
    crashes += [(out_of_space, size, 0) for size in sizes]
    expected, wrong = content(root / "whole"), []
    for number, (crash, detail, status) in enumerate(crashes):
        out = root / str(number)
        statuses = child(crash, out, detail), child(train, out)
        if statuses != (status, 0) or content(out) != expected:
            wrong.append((crash.__name__, detail, places[detail % len(places)], statuses))
    print(json.dumps(wrong))


@pytest.mark.parametrize("amount", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_a_crashed_run_resumes_as_if_nothing_had_happened(tmp_path, amount):
    support = os.pathsep.join(
        [str(Path(small_fit.__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    command, environment = (
        [sys.executable, __file__, tmp_path, amount],
        os.environ | {"PYTHONPATH": support},
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
