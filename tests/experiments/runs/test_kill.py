"""`probattn train`, killed in a step or started twice at once: resumed, it ends bit for bit as a run left alone.

The commands are forks of this file, run as a program, which saves the seconds that importing takes. Kills at random
moments, of this command and of others, are in ``tests/fuzz/kills.py``.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probattn.inference.io.checkpoint import read
from probattn.inference.training import trainer
from probattn.inference.training.run_log import read_log
from tests.fuzz.kills import CHANGES, KEP, SETTINGS, finish, flat, start, wait

ROOT = Path(__file__).parents[3]
EPOCHS = SETTINGS["train.epochs"]
BATCHES = SETTINGS["data.limit"] // SETTINGS["data.batch_size"]
FILES = [".lock", "best.pt", "last.pt", "log.jsonl", "preprocessing.json", "settings.json"]


def command(out, *more):
    return ("train", KEP, "--out", str(out), *CHANGES, *more)


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
    """Kill a run in the first epoch, in the third one, and in the middle of writing a line; resume it each time."""
    root = out.parent
    first = start(command(out), cwd=root, before=lambda: kill_in_step(6))
    assert wait(first) == -signal.SIGKILL
    assert sorted(os.listdir(out)) == [".lock", "log.jsonl", "preprocessing.json", "settings.json"]
    assert count_steps(out) == 5
    second = start(command(out, "--resume"), cwd=root, before=lambda: kill_in_step(2 * BATCHES + 8))
    assert wait(second) == -signal.SIGKILL
    assert count_steps(out) == 2 * BATCHES + 7
    assert read(out / "last.pt")["extra"]["step"] == 2 * BATCHES
    with (out / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "step", "st')
    finish(command(out, "--resume"), cwd=root)


def count_steps(out):
    """Training steps in the log so far."""
    return sum(b'"kind": "step"' in line for line in (out / "log.jsonl").read_bytes().splitlines())


def started_twice(out):
    """Start two processes of one run at the same time; one of them is refused."""
    both = [start(command(out), cwd=out.parent) for _ in range(2)]
    assert sorted(map(wait, both)) == [0, 1]
    output = "".join((out.parent / f"{pid}.log").read_text() for pid in both)
    assert "Traceback" not in output
    assert f"error: The file lock '{out}" in output or f"error: {out} holds a run" in output


def main(root):
    finish(command(root / "whole"), cwd=root)
    killed_in_steps(root / "in-steps")
    started_twice(root / "twice")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folder of the runs of :func:`main`."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.experiments.runs.test_kill", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_run_ends_as_one_that_was_left_alone(root):
    runs = sorted(path for path in root.iterdir() if path.is_dir())
    assert [path.name for path in runs] == ["in-steps", "twice", "whole"]
    for name in ("best.pt", "last.pt"):
        expected = repr(flat(read(root / "whole" / name)))
        assert [run.name for run in runs if repr(flat(read(run / name))) != expected] == []
    logs = [[{**record, "seconds": 0} for record in read_log(run / "log.jsonl")] for run in runs]
    assert [run.name for run, log in zip(runs, logs, strict=True) if repr(log) != repr(logs[-1])] == []
    settings = {(run / "settings.json").read_bytes() for run in runs}
    assert len(settings) == 1
    assert [run.name for run in runs if sorted(os.listdir(run)) != FILES] == []


def test_the_run_is_whole(root):
    for name in ("best.pt", "last.pt"):
        content = read(root / "whole" / name)
        assert all(value.isfinite().all() for value in content["model"].values())
        assert len(content["model"]) > 20
        assert len(content["guide"]) == 2
    last = read(root / "whole" / "last.pt")["extra"]
    assert last["epoch"] == EPOCHS
    assert last["best_epoch"] == read(root / "whole" / "best.pt")["extra"]["epoch"]
    log = [json.loads(line) for line in (root / "whole" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [each["step"] for each in log if each["kind"] == "step"] == list(range(1, EPOCHS * BATCHES + 1))
    assert [each["epoch"] for each in log if each["kind"] == "epoch"] == list(range(1, EPOCHS + 1))


@pytest.mark.slow
def test_commands_killed_at_random_moments_end_as_ones_that_were_left_alone():
    command = [sys.executable, "-m", "tests.fuzz", "--only", "kills", "--seed", "0", "--tries", "30"]
    done = subprocess.run([*command, "--minutes", "60"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]))
