"""A training run that is killed in mid-epoch and resumed ends bit for bit as the run that was not."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from probattn.inference.io.checkpoint import read

EPOCHS, BATCHES = 5, 60
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
COMMAND = [sys.executable, "-m", "probattn.experiments", "train", "digits/kep-svgp"]
COMMAND += [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture
def start():
    """Starts the command; whatever still runs at the end of the test is stopped."""
    started = []

    def start(out, *more):
        arguments = [*COMMAND, "--out", str(out), *more]
        started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return started[-1]

    yield start
    for run in started:
        with run:
            run.kill()


def finish(run):
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output.decode()
    return output.decode()


def steps(out):
    """Training steps in the log so far."""
    try:
        lines = (out / "log.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    return sum(b'"step"' in line and b'"kind": "step"' in line for line in lines)


def kill_after(run, out, number):
    """Sends SIGKILL once the log holds that many steps."""
    deadline = time.monotonic() + 120
    while steps(out) < number:
        assert run.poll() is None, run.stdout.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    return steps(out)


def records(out):
    lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def differences(one, other, path=""):
    """Where two checkpoints are not the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [path]
    if isinstance(one, dict):
        keys = [path] if one.keys() != other.keys() else []
        return keys + [line for key in one for line in differences(one[key], other.get(key), f"{path}.{key}")]
    if isinstance(one, list | tuple):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for number, (a, b) in pairs for line in differences(a, b, f"{path}.{number}")]
    return [] if one == other else [path]


def test_a_killed_and_resumed_run_ends_as_one_that_was_not(tmp_path, start):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = start(whole)

    seen = kill_after(start(killed), killed, 5)
    assert 5 <= seen < BATCHES
    assert sorted(path.name for path in killed.iterdir()) == [".lock", "log.jsonl", "settings.json", "tensorboard"]

    seen = kill_after(start(killed, "--resume"), killed, 2 * BATCHES + 20)
    assert 2 * BATCHES < seen < 3 * BATCHES
    assert read(killed / "last.pt")["extra"]["step"] == 2 * BATCHES
    with (killed / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "step", "st')  # as a kill in mid-write would leave it

    finish(start(killed, "--resume"))
    finish(reference)

    for name in ("last.pt", "best.pt"):
        one, other = read(whole / name), read(killed / name)
        assert differences(one, other) == []
        assert all(value.isfinite().all() for value in one["model"].values())
        assert len(one["model"]) > 20
        assert len(one["guide"]) == 2
    last = read(whole / "last.pt")["extra"]
    assert last["epoch"] == EPOCHS
    assert last["best_epoch"] == read(whole / "best.pt")["extra"]["epoch"]

    log = records(whole)
    assert log == records(killed)
    assert [each["step"] for each in log if each["kind"] == "step"] == list(range(1, EPOCHS * BATCHES + 1))
    assert [each["epoch"] for each in log if each["kind"] == "epoch"] == list(range(1, EPOCHS + 1))

    files = sorted(path.name for path in whole.iterdir())
    assert files == sorted(path.name for path in killed.iterdir())
    assert files == [".lock", "best.pt", "last.pt", "log.jsonl", "settings.json", "tensorboard"]
    assert (whole / "settings.json").read_bytes() == (killed / "settings.json").read_bytes()
