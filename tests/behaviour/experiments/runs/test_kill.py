"""`probattn train`, killed in a step or at any moment, or started twice at once: resumed, it ends
as a run left alone.

The commands are forks of this file, run as a program, which saves the seconds that importing takes.
"""

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from probattn.experiments.cli import main as cli
from probattn.inference.io.checkpoint import read
from probattn.inference.training import trainer
from probattn.inference.training.run_log import read_log

ROOT = Path(__file__).parents[4]
EPOCHS, BATCHES = 3, 5
SETTINGS = {
    "train.epochs": EPOCHS,
    "train.warmup_epochs": 1,
    "train.log_every": 1,
    "train.num_samples": 2,
}
SETTINGS |= {
    "data.limit": 40,
    "data.batch_size": 8,
    "network.dim": 16,
    "network.depth": 2,
    "network.heads": 2,
}
SETTINGS |= {"network.mlp_dim": 16, "network.dropout": 0.2}
CHANGES = tuple(part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}"))


def start(out, *more, before=lambda: None):
    """Start the command in a fork of this process and return its number; its output goes to
    ``PID.log``."""
    pid = os.fork()
    if pid:
        return pid
    torch.set_num_threads(1)
    output = os.open(out.parent / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        before()
        sys.argv = ["probattn", "train", "digits/kep-svgp", "--out", str(out), *CHANGES, *more]
        cli.main()
    except SystemExit as end:
        status = end.code or 0
    finally:
        os._exit(status)


def wait(pid):
    """Return the exit status of a process, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def finish(out, *more):
    pid = start(out, *more)
    assert wait(pid) == 0, (out.parent / f"{pid}.log").read_text(encoding="utf-8")


def kill_in_step(number):
    """Kill this process in the middle of a training step."""
    left, train_step = iter(range(1, number)), trainer.train_step

    def dying(*arguments, **options):
        result = train_step(*arguments, **options)
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    trainer.train_step = dying


def killed_in_steps(out):
    """Kill a run in the first epoch, in the third one, and in the middle of writing a line; resume
    it each time."""
    assert wait(start(out, before=lambda: kill_in_step(4))) == -signal.SIGKILL
    assert sorted(os.listdir(out)) == [".lock", "log.jsonl", "preprocessing.json", "settings.json"]
    assert count_steps(out) == 3
    assert (
        wait(start(out, "--resume", before=lambda: kill_in_step(2 * BATCHES + 4)))
        == -signal.SIGKILL
    )
    assert count_steps(out) == 2 * BATCHES + 3
    assert read(out / "last.pt")["extra"]["step"] == 2 * BATCHES
    with (out / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "step", "st')
    finish(out, "--resume")


def count_steps(out):
    """Training steps in the log so far."""
    return sum(b'"kind": "step"' in line for line in (out / "log.jsonl").read_bytes().splitlines())


def started_twice(out):
    """Start two processes of one run at the same time; one of them fails."""
    both = [start(out) for _ in range(2)]
    assert sorted(map(wait, both)) == [0, 1]
    output = "".join((out.parent / f"{pid}.log").read_text() for pid in both)
    assert "Traceback" not in output
    assert f"error: The file lock '{out}" in output or f"error: {out} holds a run" in output


def killed_at_any_moment(out, seconds, seed):
    """Kill a run and its resumed ones at random moments."""
    chosen = random.Random(seed)
    for _ in range(3):
        pid = start(out, "--resume")
        time.sleep(chosen.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
        wait(pid)
    finish(out, "--resume")


def main(root, kills):
    """Train a run that is left alone and those that are not."""
    torch.set_num_threads(1)
    for late in ("lightning_fabric", "sklearn.datasets", "probattn.experiments.runs.train"):
        importlib.import_module(late)  # what the command imports late, once for all forks
    began = time.monotonic()
    finish(root / "whole")
    seconds = time.monotonic() - began
    killed_in_steps(root / "in-steps")
    started_twice(root / "twice")
    for seed in range(kills):
        killed_at_any_moment(root / f"random-{seed}", seconds, seed)


def bits(value):
    """Return tensors, and dicts and lists of them, in a form that shows every bit."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), repr(value.tolist())]
    if isinstance(value, dict):
        unused = (
            "python",
            "numpy",
        )  # random states that a fork seeds anew, and that the commands do not use
        return [(key, bits(part)) for key, part in value.items() if key not in unused]
    return [*map(bits, value)] if isinstance(value, list | tuple) else repr(value)


def content(run):
    """Return all that must be the same for every run."""
    log = repr([record | {"seconds": 0} for record in read_log(run / "log.jsonl")])
    settings = (run / "settings.json").read_bytes()
    return (
        sorted(os.listdir(run)),
        bits(read(run / "best.pt")),
        bits(read(run / "last.pt")),
        log,
        settings,
    )


def check_equal(root):
    whole = content(root / "whole")
    assert whole[0] == [
        ".lock",
        "best.pt",
        "last.pt",
        "log.jsonl",
        "preprocessing.json",
        "settings.json",
    ]
    assert [run.name for run in root.iterdir() if run.is_dir() and content(run) != whole] == []
    last = read(root / "whole" / "last.pt")["extra"]
    assert (last["epoch"], last["step"]) == (EPOCHS, EPOCHS * BATCHES)


@pytest.mark.parametrize("kills", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_every_run_ends_as_one_that_was_left_alone(tmp_path, kills):
    command = [
        sys.executable,
        "-m",
        "tests.behaviour.experiments.runs.test_kill",
        tmp_path,
        str(kills),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    check_equal(tmp_path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
