"""Kill a command by SIGKILL at random moments and run it again: its results equal those without a kill, bit for bit."""

import functools
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

SETTINGS = {
    "train.epochs": 3,
    "train.warmup_epochs": 1,
    "train.log_every": 1,
    "train.num_samples": 2,
    "data.limit": 80,
    "data.batch_size": 8,
    "network.dim": 16,
    "network.depth": 2,
    "network.heads": 2,
    "network.mlp_dim": 16,
    "network.dropout": 0.2,
}
CHANGES = tuple(part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}"))
KEP, SOFTMAX = "digits/kep-svgp", "digits/softmax"
EVALUATION = ("--shift", "--corruptions", "contrast", "--severities", "2", "--num-samples", "2")
KILLS = 3
"""Kills of one try, at most."""


class Scenario(NamedTuple):
    """A function that creates the inputs of a command in an empty folder, and the command, which is run in it."""

    prepare: Callable[[Path], None]
    command: tuple[str, ...]


def fuzz_kills(chosen: random.Random, folder: Path) -> str:
    """Kill one command up to :data:`KILLS` times, run it once more, and compare its results with those without a kill.

    Returns:
        The scenario's name and the number of kills, such as ``train, 2 kills``.

    Raises:
        AssertionError: the results differ, or the last run failed.
    """
    name = chosen.choice(sorted(SCENARIOS))
    reference, seconds = _reference(name)
    SCENARIOS[name].prepare(folder)
    kills = 0
    for _ in range(chosen.randint(1, KILLS)):
        kills += _kill_after(chosen.uniform(0, seconds), start(SCENARIOS[name].command, cwd=folder))
    finish(SCENARIOS[name].command, cwd=folder)
    content = results(folder)
    differing = [path for path in sorted(reference | content) if reference.get(path) != content.get(path)]
    assert not differing, f"{name} after {kills} kills differs in {', '.join(differing)}"
    return f"{name}, {kills} kills"


def start(arguments: Sequence[str], *, cwd: Path, before: Callable[[], None] = lambda: None) -> int:
    """Start the command in a fork of this process, as the leader of a process group, and return its number.

    Its output goes to files ``PID.log`` in ``cwd``.

    Args:
        arguments: arguments of the command.
        cwd: its working directory.
        before: called in the fork first.
    """
    import_commands()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        torch.set_num_threads(1)  # before other threads do: PyTorch's thread pool of a fork is made at the first call
        os.setpgid(0, 0)
        os.chdir(cwd)
        output = os.open(f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        before()
        sys.argv = ["probattn", *arguments]
        importlib.import_module("probattn.experiments.cli.main").main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def wait(pid: int) -> int:
    """Return the exit status of a process, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def finish(arguments: Sequence[str], *, cwd: Path) -> None:
    """Run the command to its end.

    Raises:
        AssertionError: it failed; with its output.
    """
    pid = start(arguments, cwd=cwd)
    status = wait(pid)
    output = (cwd / f"{pid}.log").read_text(encoding="utf-8", errors="replace")
    assert status == 0, f"probattn {' '.join(arguments)} ended with {status}:\n{output}"


def results(folder: Path) -> dict[str, str]:
    """Return the content of each file below a folder in a form that can be compared, without times and drafts."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    shown = (path for path in paths if not path.name.startswith(".") and path.suffix != ".log")
    return {path.relative_to(folder).as_posix(): _content(path) for path in shown}


@functools.cache
def import_commands() -> None:
    """Import what the commands import late, once for all forks, which use one thread each."""
    torch.set_num_threads(1)
    for late in (
        "lightning_fabric",
        "probattn.experiments.cli.main",
        "probattn.experiments.evaluation.evaluate",
        "probattn.experiments.reporting.report",
        "probattn.experiments.sharing.programs",
        "probattn.experiments.studies.compare",
        "probattn.experiments.studies.study",
        "sklearn.datasets",
    ):
        importlib.import_module(late)


@functools.cache
def _prepared() -> tempfile.TemporaryDirectory:
    """Return a folder with two evaluated runs."""
    folder = tempfile.TemporaryDirectory(prefix="probattn-fuzz-")
    for preset in (KEP, SOFTMAX):
        finish(("train", preset, "--out", preset, *CHANGES), cwd=Path(folder.name))
        finish(("evaluate", preset, "--num-samples", "2"), cwd=Path(folder.name))
    return folder


def _evaluated_runs(folder: Path) -> None:
    shutil.copytree(_prepared().name, folder, dirs_exist_ok=True)


def _nothing(folder: Path) -> None:
    """Prepare nothing."""


_STUDY = ("--seeds", "1", "--workers", "2", "--method", "temperature")
SCENARIOS = {
    "train": Scenario(_nothing, ("train", KEP, "--out", "run", "--resume", *CHANGES)),
    "evaluate": Scenario(_evaluated_runs, ("evaluate", KEP, *EVALUATION)),
    "compare": Scenario(_evaluated_runs, ("compare", KEP, SOFTMAX, "--out", "comparison")),
    "study": Scenario(_nothing, ("study", KEP, SOFTMAX, "--out", "study", *_STUDY, *CHANGES)),
    "export program": Scenario(_evaluated_runs, ("export", KEP, "--out", "program.pt2")),
    "export folder": Scenario(_evaluated_runs, ("export", KEP, "--out", "shared")),
}


@functools.cache
def _reference(name: str) -> tuple[dict[str, str], float]:
    """Return the results of a scenario without a kill, and the seconds that the command takes."""
    with tempfile.TemporaryDirectory(prefix="probattn-fuzz-") as folder:
        SCENARIOS[name].prepare(Path(folder))
        began = time.monotonic()
        finish(SCENARIOS[name].command, cwd=Path(folder))
        return results(Path(folder)), time.monotonic() - began


def _kill_after(seconds: float, pid: int) -> bool:
    """Kill a command and its worker processes after some seconds; return False if it had ended before.

    The workers are killed with it, or end by themselves because it is gone.
    """
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    killed = wait(pid) == -signal.SIGKILL
    while True:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return killed
        time.sleep(0.01)


def _content(path: Path) -> str:
    if path.suffix == ".pt":
        return repr(flat(torch.load(path, weights_only=True)))
    if path.suffix == ".pt2":
        program = torch.export.load(path)
        return repr((flat(dict(program.state_dict)), program.graph_module.code))
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
        return repr([_without_times(json.loads(line)) for line in lines])
    return path.read_bytes().hex()


def flat(value: Any) -> Any:
    """Return tensors, and dicts and lists of them, in a form whose ``repr`` shows every bit."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        unused = ("python", "numpy")  # random states that a fork seeds anew, and that the commands do not use
        return [(key, flat(each)) for key, each in value.items() if key not in unused]
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value


def _without_times(record: Any) -> Any:
    if not isinstance(record, dict):
        return record
    return {key: _without_times(value) for key, value in record.items() if key not in ("seconds", "digest")}
