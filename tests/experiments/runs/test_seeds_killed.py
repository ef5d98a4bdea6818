"""`probattn train --seeds`, stopped at any write or step: resumed, it ends bit for bit as a sweep left alone.

The sweeps are forks of this file, run as a program, which saves the seconds that importing takes. `make test` stops
them at a sample of the moments, `make test-all` at all.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.data.dataset import digest
from probattn.experiments.runs import seeds
from probattn.inference.io.checkpoint import read
from probattn.inference.training import run_log, trainer

CHANGES = [
    "train.epochs=2",
    "train.warmup_epochs=0",
    "train.num_samples=2",
    "train.log_every=1",
    "data.limit=24",
    "data.batch_size=12",
    "network.dim=8",
    "network.depth=1",
    "network.heads=2",
    "network.mlp_dim=8",
    "network.dropout=0.2",
]


def sweep(out, *, name="digits/kep-svgp", change="layer.rank=2"):
    settings = presets.preset(name).with_changes([*CHANGES, change])
    seeds.train_seeds(settings, out, seeds=2, name=name, resume=True)


def warm_sweep(out):
    """A sweep of runs with a warm start, which is a run in a folder of its own."""
    sweep(out, name="digits/cgp", change="warm_start.epochs=1")


def child(function, *arguments):
    """Run a function in a fork of this process; return its exit status, negative if a signal ended it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # makes PyTorch's thread pool of this fork, before other threads race to it
            function(*arguments)
            status = 0
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_moments(out, act):
    """Call ``act`` with a description before each training step, and each change of a file below a folder."""

    def hook(event, arguments):
        if event in ("os.rename", "os.mkdir", "os.remove", "os.truncate") or (event == "open" and _writes(arguments)):
            with contextlib.suppress(TypeError):
                if Path(os.fspath(arguments[0])).is_relative_to(out):
                    act(f"{event} {Path(os.fspath(arguments[0])).relative_to(out)}")

    train_step = trainer.train_step

    def step(*arguments, **options):
        act("step")
        return train_step(*arguments, **options)

    sys.addaudithook(hook)
    trainer.train_step = step


def _writes(arguments):
    _, mode, flags = arguments
    return any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


def remember_moments(function, out, path):
    moments = []
    at_moments(out, moments.append)
    function(out)
    path.write_text(json.dumps([*moments, "end"]))


def stopped(function, out, number, *, kill):
    """Run a function until it is killed or interrupted at a moment."""
    left = iter(range(number))

    def act(_):
        if next(left, None) is None:
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt

    at_moments(out, act)
    function(out)
    act("end")


def content(out):
    """Return digests of what the runs of a sweep have left, without times."""
    found = {}
    for folder in sorted(path.parent for path in out.rglob("last.pt")):
        records = [{**record, "seconds": 0} for record in run_log.read_log(folder / "log.jsonl")]
        checkpoints = [read(folder / name) for name in ("best.pt", "last.pt")]
        for states in checkpoints[1]["extra"]["random"]:
            del states["python"], states["numpy"]  # which a fork seeds anew, and the run does not use
        checkpoints = [digest(json.dumps(states, default=torch.Tensor.tolist)) for states in checkpoints]
        found[str(folder.relative_to(out))] = (checkpoints, records, sorted(os.listdir(folder)))
    return repr(found)


def main(root, amount):
    """Print the moments after which a sweep did not resume exactly."""
    torch.set_num_threads(1)
    for late in ("lightning_fabric", "probattn.experiments.runs.train", "sklearn.datasets"):
        importlib.import_module(late)
    wrong, tried = [], 0
    for function in (sweep, warm_sweep):
        whole = root / f"{function.__name__}-whole"
        assert child(remember_moments, function, whole, root / "moments") == 0
        moments, expected = json.loads((root / "moments").read_text()), content(whole)
        assert len(moments) > 30
        for number in range(len(moments)) if amount == "all" else random.Random(0).sample(range(len(moments)), 2):
            kill = number % 2 == 0
            out = root / f"{function.__name__}-{number}"
            status = child(lambda: stopped(function, out, number, kill=kill))  # noqa: B023
            ended = child(function, out)
            tried += 1
            if (status, ended) != (-signal.SIGKILL if kill else 130, 0) or content(out) != expected:
                wrong.append((function.__name__, number, moments[number], status, ended))
    print(json.dumps({"tried": tried, "wrong": wrong}))


@pytest.mark.parametrize("amount", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_a_sweep_stopped_at_any_moment_ends_as_one_left_alone(tmp_path, amount):
    command = [sys.executable, __file__, tmp_path, amount]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == [], done.stderr
    assert found["tried"] >= (4 if amount == "some" else 100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
