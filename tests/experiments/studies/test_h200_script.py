"""The script for an H200 runs the checks, then one seed more at a time, in calls that end."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "experiments" / "h200.sh"


@pytest.fixture
def call(tmp_path):
    def run(body, *, minutes=5):
        fake = tmp_path / "probattn"
        fake.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n{body}\n')
        fake.chmod(0o755)
        settings = {"PROBATTN": str(fake), "SEEDS": "2", "SETTINGS": "train.compile=true"}
        command = ["bash", str(SCRIPT), str(tmp_path / "out"), str(tmp_path), str(minutes)]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, (tmp_path / "calls").read_text().splitlines()

    return run


def test_the_table_follows_the_checks_seed_by_seed(call):
    code, out, calls = call("echo in order")
    assert code == 0
    assert "done: " in out
    assert [each.split()[0] for each in calls] == ["check-gpu", "reproduce", "reproduce"]
    assert [each.split("--seeds ")[1].split()[0] for each in calls[1:]] == ["1", "2"]
    assert "--set train.compile=true" in calls[1]


def test_a_call_whose_time_is_over_asks_for_another(call):
    code, out, calls = call("echo in order", minutes=0)
    assert code == 75
    assert "call it again" in out
    assert len(calls) == 1


def test_an_error_ends_the_script(call):
    code, _, calls = call('[ "$1" = check-gpu ] && echo in order || exit 3')
    assert code == 1
    assert len(calls) == 2
