"""`python -m tests.fuzz`: prints the seed of each try, counts tries and failures, and fails after a failure."""

import random
import sys

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz import damage, kills


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command: exit status and output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fuzz", *map(str, arguments)])
        return fuzz.main(), capsys.readouterr().out

    return run


def test_each_try_has_a_seed_that_repeats_it(run, monkeypatch):
    drawn = []
    monkeypatch.setitem(fuzz.FUZZERS, "settings", lambda chosen, folder: drawn.append(chosen.random()) or "done")
    status, text = run("--only", "settings", "--seed", 7, "--tries", 3)
    assert status == 0
    assert text == "".join(f"settings, seed {seed}: done\n" for seed in (7, 8, 9)) + "settings: 3 tries, 0 failures\n"
    run("--only", "settings", "--seed", 9, "--tries", 1)
    assert drawn[3] == drawn[2] == random.Random(9).random()


def test_a_failure_is_printed_with_its_seed_and_the_next_try_begins(run, monkeypatch, capsys):
    def fail(chosen, folder):
        assert chosen.random() != random.Random(8).random(), "the eighth"
        return "done"

    monkeypatch.setitem(fuzz.FUZZERS, "layers", fail)
    status, text = run("--only", "layers", "--seed", 7, "--tries", 3)
    assert status == 1
    assert "layers, seed 8: FAILED; repeat with --only layers --seed 8 --tries 1\n" in text
    assert text.endswith("layers, seed 9: done\nlayers: 3 tries, 1 failures\n")


def test_no_try_begins_when_the_time_is_over(run):
    assert run("--minutes", 0, "--only", "kills") == (0, "kills: 0 tries, 0 failures\n")


def test_damage_always_changes_or_keeps_bytes_as_it_says():
    whole = bytes(range(256)) * 4
    found = [damage.damage(whole, random.Random(seed)) for seed in range(200)]
    assert sum(each != whole for each in found) > 190
    assert {len(each) < len(whole) for each in found} == {True, False}
    assert max(map(len, found)) > len(whole)


def test_kills_cover_every_command_that_writes_results():
    commands = {scenario.command[0] for scenario in kills.SCENARIOS.values()}
    assert commands == {"train", "evaluate", "compare", "study", "export"}
    assert any("--seeds" in scenario.command for scenario in kills.SCENARIOS.values())
