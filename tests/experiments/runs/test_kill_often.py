"""The command, killed at random moments many times, or started twice at once: it ends as one that was left alone.

The commands are forks of this file, run as a program, which spare the seconds that importing takes.
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

import torch

from probattn.experiments.cli import main as cli
from probattn.inference.io.checkpoint import read
from probattn.inference.training.run_log import read_log

KILLS = 10
SETTINGS = {
    "train.epochs": 4,
    "train.warmup_epochs": 1,
    "train.log_every": 1,
    "train.num_samples": 2,
    "data.limit": 240,
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


def start(out, *more):
    """The command in a fork of this process; what it prints goes to a file beside the folder."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            said = os.open(out.with_name(f"{out.name}.{os.getpid()}.txt"), os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.argv = ["probattn", "train", "digits/kep-svgp", "--out", str(out), *CHANGES, *more]
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    return pid


def wait(pid):
    """The exit status, negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def flat(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return [(key, flat(each)) for key, each in value.items()]
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value


def content(folder):
    """All that a run has left, times apart, in a form that can be compared."""
    records = [{**record, "seconds": 0} for record in read_log(folder / "log.jsonl")]
    checkpoints = flat([read(folder / name) for name in ("best.pt", "last.pt")])
    return repr((records, checkpoints, (folder / "settings.json").read_text(), sorted(os.listdir(folder))))


def killed(root, seconds):
    """Folders of runs that were killed at random moments and resumed until they ended."""
    moments, out, kills, folders = random.Random(0), root / "killed-0", 0, []
    while kills < KILLS:
        run = start(out, "--resume")
        time.sleep(moments.uniform(0, 0.7 * seconds))
        os.kill(run, signal.SIGKILL)
        if wait(run) == 0:
            folders.append(out)
            out = root / f"killed-{len(folders)}"
        else:
            kills += 1
    assert wait(start(out, "--resume")) == 0
    return [*folders, out]


def twice(root, number):
    """The folder of a run that two processes have begun at the same time."""
    out = root / f"twice-{number}"
    both = [start(out), start(out)]
    assert sorted(map(wait, both)) == [0, 1]
    said = "".join(path.read_text() for path in root.glob(f"{out.name}.*.txt"))
    assert "Traceback" not in said
    assert f"error: another process works in {out}" in said or f"error: {out} holds a run" in said
    return out


def main(root):
    """Prints the folders whose content is not that of a run that was left alone."""
    torch.set_num_threads(1)
    for late in ("probattn.experiments.runs.train", "sklearn.datasets", "torch.utils.tensorboard"):
        importlib.import_module(late)
    started = time.monotonic()
    assert wait(start(root / "whole")) == 0
    seconds, expected = time.monotonic() - started, content(root / "whole")
    assert sorted(os.listdir(root / "whole")) == FILES
    folders = [*killed(root, seconds), *(twice(root, number) for number in range(3))]
    print(json.dumps([folder.name for folder in folders if content(folder) != expected]))


def test_a_command_that_is_killed_many_times_or_started_twice_ends_as_one_that_is_not(tmp_path):
    command = [sys.executable, __file__, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]))
