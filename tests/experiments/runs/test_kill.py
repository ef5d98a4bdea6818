"""`probattn train`, killed by SIGKILL or started twice at once: resumed, it ends bit for bit as a run left alone.

The commands are forks of this file, run as a program, which saves the seconds that importing takes. Kills are in step
N of the process, or at random moments.
"""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from probattn.experiments.cli import main as cli
from probattn.inference.io.checkpoint import read
from probattn.inference.training.run_log import read_log
from probattn.inference.training.step import Step

RANDOM_KILLS = 8
EPOCHS, BATCHES = 4, 20
SETTINGS = {
    "train.epochs": EPOCHS,
    "train.warmup_epochs": 1,
    "train.log_every": 1,
    "train.num_samples": 2,
    "data.limit": BATCHES * 8,
    "data.batch_size": 8,
    "network.dim": 16,
    "network.depth": 2,
    "network.heads": 2,
    "network.mlp_dim": 16,
    "network.dropout": 0.2,
    "layer.rank": 4,
}
CHANGES = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
FILES = [".lock", "best.pt", "last.pt", "log.jsonl", "settings.json", "tensorboard"]


def start(out, *more, die_in_step=None):
    """Start the command in a fork of this process; its output goes to a file next to the folder."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            output = os.open(out.with_name(f"{out.name}.{os.getpid()}.txt"), os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if die_in_step is not None:
                kill_in_step(die_in_step)
            sys.argv = ["probattn", "train", "digits/kep-svgp", "--out", str(out), *CHANGES, *more]
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    return pid


def kill_in_step(number):
    """Kill this process in the middle of a training step."""
    left, loss = iter(range(1, number)), Step._loss

    def dying(self, *arguments):
        result = loss(self, *arguments)
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Step._loss = dying


def wait(pid):
    """The exit status, negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_in_steps(out):
    """Kill a run in the first epoch, in the third one, and in the middle of writing a line; resume it each time."""
    assert wait(start(out, die_in_step=6)) == -signal.SIGKILL
    assert sorted(os.listdir(out)) == [".lock", "log.jsonl", "settings.json", "tensorboard"]
    assert count_steps(out) == 5
    assert wait(start(out, "--resume", die_in_step=2 * BATCHES + 8)) == -signal.SIGKILL
    assert count_steps(out) == 2 * BATCHES + 7
    assert read(out / "last.pt")["extra"]["step"] == 2 * BATCHES
    with (out / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "step", "st')
    assert wait(start(out, "--resume")) == 0


def count_steps(out):
    """Training steps in the log so far."""
    return sum(b'"kind": "step"' in line for line in (out / "log.jsonl").read_bytes().splitlines())


def killed_at_random(root, seconds):
    """Kill runs at random moments and resume them until they end."""
    moments, finished, kills = random.Random(0), 0, 0
    out = root / "killed-0"
    while kills < RANDOM_KILLS:
        run = start(out, "--resume")
        time.sleep(moments.uniform(0, 0.7 * seconds))
        os.kill(run, signal.SIGKILL)
        if wait(run) == 0:
            finished += 1
            out = root / f"killed-{finished}"
        else:
            kills += 1
    assert wait(start(out, "--resume")) == 0


def started_twice(out):
    """Start two processes of one run at the same time; one of them is refused."""
    both = [start(out), start(out)]
    assert sorted(map(wait, both)) == [0, 1]
    output = "".join(path.read_text() for path in out.parent.glob(f"{out.name}.*.txt"))
    assert "Traceback" not in output
    assert f"error: another process works in {out}" in output or f"error: {out} holds a run" in output


def main(root):
    torch.set_num_threads(1)
    for late in ("probattn.experiments.runs.train", "sklearn.datasets", "torch.utils.tensorboard"):
        importlib.import_module(late)
    began = time.monotonic()
    assert wait(start(root / "whole")) == 0
    seconds = time.monotonic() - began
    killed_in_steps(root / "in-steps")
    killed_at_random(root, seconds)
    for number in range(3):
        started_twice(root / f"twice-{number}")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folder of the runs of :func:`main`."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run([sys.executable, __file__, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def flat(value):
    """A checkpoint in a form that can be compared bit for bit."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return [(key, flat(each)) for key, each in value.items()]
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value


def test_every_run_ends_as_one_that_was_left_alone(root):
    runs = sorted(path for path in root.iterdir() if path.is_dir())
    assert {path.name for path in runs} >= {"whole", "in-steps", "killed-0", "twice-0", "twice-1", "twice-2"}
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
