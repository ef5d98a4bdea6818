"""A run and its warm start, killed at any line, or out of disk space at any byte, resume as if
nothing had happened; two processes do not train one run.

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

from probattn.experiments.config import presets
from probattn.experiments.runs import folder, train
from probattn.inference.io import checkpoint, files
from probattn.inference.training import fit, run_log, step, trainer

MODULES = (checkpoint, files, fit, folder, run_log, step, train, trainer)
TRACED = {module.__file__ for module in MODULES}
CHANGES = [
    "train.epochs=2",
    "train.warmup_epochs=0",
    "warm_start.epochs=1",
    "train.log_every=1",
    "train.num_samples=1",
]
CHANGES += ["data.limit=24", "data.batch_size=8", "network.dim=8", "network.depth=1"]
CHANGES += ["network.heads=2", "network.mlp_dim=8", "network.dropout=0.2", "layer.last=1"]
SETTINGS = presets.preset("digits/cgp").with_changes(CHANGES)


def run(out, resume=True):
    train.train(SETTINGS, out, name="digits/cgp", resume=resume, progress=False)


def start(function, *arguments):
    """Start a function in a fork of this process, and return the number of that."""
    pid = os.fork()
    if pid:
        return pid
    try:
        # Makes PyTorch's thread pool of this fork, before other threads race to it.
        torch.set_num_threads(1)
        function(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait(pid):
    """Return the exit status of a process, negative if a signal ended it."""
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


def remember(out, path):
    """Run, and keep the lines that ran and the number of files that were written."""
    places, written, write = [], [], Path.write_bytes

    def count(path, content):
        written.append(path.name)
        return write(path, content)

    Path.write_bytes = count
    at_lines(places.append)
    run(out)
    sys.settrace(None)
    path.write_text(json.dumps([places, len(written)]))


def killed_at_line(out, number):
    left = iter(range(number))
    at_lines(lambda place: next(left, None) is None and die())
    run(out)


def killed_in_file(out, number):
    """Die when half of the file of that number is written."""
    write, left = Path.write_bytes, iter(range(number))

    def half(path, content):
        if next(left, None) is None:
            write(path, content[: len(content) // 2])
            die()
        write(path, content)

    Path.write_bytes = half
    run(out)


def out_of_space(out, size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(OSError, match="File too large"):
        run(out)


def names(out):
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*"))


def content(out):
    """Return what a run has left, without times, in a form that can be compared."""
    parts = [names(out), (out / "settings.json").read_text()]
    for phase in (out / "warm-start", out):
        last = checkpoint.read(phase / "last.pt")
        for unused in (
            "python",
            "numpy",
        ):  # a fork seeds these anew, and this run does not use them
            del last["extra"]["random"][0][unused]
        parts += [small_fit.flat(last), small_fit.flat(checkpoint.read(phase / "best.pt"))]
        parts.append(small_fit.untimed(run_log.read_log(phase / "log.jsonl")))
    return repr(parts)


def crashes(root, places, written, amount):
    """Return functions that crash, what they take, and their exit status."""
    lines = sorted({place: number for number, place in enumerate(places)}.values())
    sizes = range(0, (root / "whole" / "last.pt").stat().st_size, 1000)
    writes = range(written)
    assert len(lines) > 100
    if amount == "some":
        chosen = random.Random(0)
        lines, sizes, writes = chosen.sample(lines, 2), chosen.sample(sizes, 1), [5]
    yield from ((killed_at_line, number, -signal.SIGKILL) for number in lines)
    yield from ((killed_in_file, number, -signal.SIGKILL) for number in writes)
    yield from ((out_of_space, size, 0) for size in sizes)


def main(root, amount):
    """Print the crashes after which a run did not resume exactly."""
    torch.set_num_threads(1)
    for late in ("lightning_fabric", "sklearn.datasets"):
        importlib.import_module(late)  # once for all forks
    assert wait(start(remember, root / "whole", root / "lines")) == 0
    places, written = json.loads((root / "lines").read_text())
    expected, wrong = content(root / "whole"), []
    for number, (crash, detail, status) in enumerate(crashes(root, places, written, amount)):
        out = root / str(number)
        statuses = [wait(start(crash, out, detail))]
        left = set(names(out)) - set(names(root / "whole"))
        statuses.append(wait(start(run, out)))
        drafts = left if crash is out_of_space else set()
        if statuses != [status, 0] or drafts or content(out) != expected:
            wrong.append((crash.__name__, detail, places[detail % len(places)], statuses))
    both = [start(run, root / "twice", False) for _ in range(2)]
    statuses = sorted(map(wait, both))
    if statuses != [0, 1] or content(root / "twice") != expected:
        wrong.append(("twice", statuses))
    print(json.dumps(wrong))


@pytest.mark.parametrize("amount", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_a_crashed_run_resumes_as_if_nothing_had_happened(tmp_path, amount):
    support = str(Path(small_fit.__file__).parent)
    path = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__, tmp_path, amount],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
