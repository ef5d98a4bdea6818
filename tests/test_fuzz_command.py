"""`python -m tests.fuzz`: prints the seed of each try, counts tries and failures, and fails after a failure."""

import random
import sys

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz import kills


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command: exit status and output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fuzz", *map(str, arguments)])
        return fuzz.main(), capsys.readouterr().out

    return run


def test_a_failure_is_printed_with_the_seed_that_repeats_it_and_the_next_try_begins(run, monkeypatch):
    def fail(chosen, folder):
        assert chosen.random() != random.Random(8).random(), "the eighth"
        return "done"

    monkeypatch.setitem(fuzz.FUZZERS, "layers", fail)
    status, text = run("--only", "layers", "--seed", 7, "--tries", 3)
    assert status == 1
    assert "layers, seed 8: FAILED; repeat with --only layers --seed 8 --tries 1\n" in text
    assert text.endswith("layers, seed 9: done\nlayers: 3 tries, 1 failures\n")
    assert run("--only", "layers", "--seed", 8, "--tries", 1)[0] == 1


def test_no_try_begins_when_the_time_is_over(run):
    assert run("--minutes", 0, "--only", "kills") == (0, "kills: 0 tries, 0 failures\n")


def test_kills_cover_every_command_that_writes_results():
    commands = {scenario.command[0] for scenario in kills.SCENARIOS.values()}
    assert commands == {"train", "evaluate", "compare", "study", "export"}
