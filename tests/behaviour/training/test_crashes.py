"""A run killed at any line, or out of disk space at any byte, resumes as if nothing had happened.

This file is run as a program that forks a process per crash, which saves the time of importing.
`make test` runs a sample of the crashes, `make test-all` all.
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
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, fit
from probattn.inference.io import checkpoint, files
from probattn.inference.training import fit as training
from probattn.inference.training import run_log, step, trainer
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

MODULES = (checkpoint, files, run_log, step, trainer, training)
TRACED = {module.__file__ for module in MODULES}
OPTIONS = TrainOptions(epochs=2, log_every=1, num_samples=1, accelerator="cpu")
FILES = [".lock", "best.pt", "last.pt", "log.jsonl"]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.head = nn.Linear(3, 4), KEPSVGPAttention(4, 2, rank=2), nn.Linear(4, 3)

    def forward(self, x):
        x = self.embed(x)
        return self.head((x + self.attention(x)).mean(-2))


def train(out):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(6, 4, 3), torch.arange(6) % 3)
    model = Supervised(Network(), Categorical(), num_data=6)
    loader = DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1))
    fit(
        model,
        guides.for_model(model),
        loader,
        DataLoader(data, batch_size=6),
        options=OPTIONS,
        out=out,
        resume=True,
        progress=False,
    )


def child(function, *arguments):
    """Run a function in a fork of this process; return its exit status, negative if a signal ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # makes PyTorch's thread pool of this fork, before other threads race to it
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
    """Limit the size of files."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    with pytest.raises(OSError, match="File too large"):
        train(out)
    assert {path.name for path in out.iterdir()} <= set(FILES)


def read_only(out, _):
    """Train as a user without permission to write there."""
    out.mkdir(mode=0o555)
    out.parent.chmod(0o755)
    os.chdir(out.parent)  # the folders above are closed to others
    if os.getuid() == 0:
        os.setuid(65534)
    with pytest.raises(OSError, match="Permission denied"):
        train(Path(out.name))


def content(folder):
    """Return what a run has left, without times, in a form that can be compared."""
    records = [{**record, "seconds": 0} for record in run_log.read_log(folder / "log.jsonl")]
    checkpoints = [checkpoint.read(folder / name) for name in ("best.pt", "last.pt")]
    return repr((records, flat(checkpoints), sorted(os.listdir(folder))))


def flat(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        unused = ("python", "numpy")  # random states that a fork seeds anew, and that this run does not use
        return [(key, flat(each)) for key, each in sorted(value.items(), key=str) if key not in unused]
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value


def crashes(root, amount):
    """Yield name, function and argument of each crash, and the exit status that it ends with."""
    places = json.loads((root / "lines").read_text())
    last = {place: number for number, place in enumerate(places)}
    first = {place: number for number, place in reversed(list(enumerate(places)))}
    assert len(first) > 100
    lines = sorted({*first.values(), *last.values()})
    sizes = range(0, (root / "whole" / "last.pt").stat().st_size, 1000)
    chosen = random.Random(0)
    for number in lines if amount == "all" else chosen.sample(lines, 4):
        yield f"killed at {places[number]}, line {number}", killed_at_line, number, -signal.SIGKILL
    for number in range(3):
        yield f"killed in file {number}", killed_in_file, number, -signal.SIGKILL
    for size in sizes if amount == "all" else chosen.sample(sizes, 2):
        yield f"space for {size}", out_of_space, size, 0
    yield "read-only", read_only, None, 0


def killed_often(out, length, kills):
    """Kill and resume a run at random lines, several times."""
    moments = random.Random(1)
    return [child(killed_at_line, out, moments.randrange(length)) for _ in range(kills)]


def main(root, amount):
    """Print the crashes after which a run did not resume exactly."""
    torch.set_num_threads(1)
    importlib.import_module("lightning_fabric")  # once for all forks
    assert child(remember_lines, root / "whole", root / "lines") == 0
    expected, wrong = content(root / "whole"), []
    for number, (name, crash, detail, status) in enumerate(crashes(root, amount)):
        out = root / str(number)
        crashed = child(crash, out, detail)
        out.mkdir(exist_ok=True)
        out.chmod(0o755)  # what `read_only` has left
        found = crashed, child(train, out)
        if found != (status, 0) or content(out) != expected:
            wrong.append((name, found))
    length = len(json.loads((root / "lines").read_text()))
    kills = 10 if amount == "all" else 4
    found = killed_often(root / "often", length, kills=kills)
    killed = found.count(-signal.SIGKILL)
    if child(train, root / "often") or content(root / "often") != expected or killed < kills // 2:
        wrong.append(("killed often", found))
    print(json.dumps(wrong))


@pytest.mark.parametrize("amount", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_a_crashed_run_resumes_as_if_nothing_had_happened(tmp_path, amount):
    command = [sys.executable, __file__, tmp_path, amount]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
