"""Collective calls in one process, and the error that torchrun reports."""

import pytest
from two_ranks import main, torchrun

from probattn.inference.distributed.collectives import (
    broadcast_result,
    make_fabric,
    rank_zero_first,
    report_first_error,
    world,
)


@pytest.mark.slow  # waits for torchrun to end the job
def test_torchrun_names_the_rank_that_died_and_not_those_that_died_of_it():
    done = torchrun("fail", restarts=1)
    assert done.returncode != 0
    first, _, second = done.stdout.partition("failed (exitcode: 1) local_rank: 1")
    assert "[rank1]: ValueError: this is the cause" in first
    _, _, cause = second.rpartition("Root Cause")
    assert "rank      : 1" in cause
    assert "Signal 9 (SIGKILL)" in cause
    assert "Connection" not in cause


@pytest.mark.slow  # waits for torchrun to end the job
def test_a_rank_that_fails_while_files_are_written_ends_the_run(tmp_path):
    done = torchrun("fail_in_fit", tmp_path, timeout=120)
    assert done.returncode != 0
    assert "[rank1]: ValueError: this is the cause" in done.stdout
    assert (tmp_path / "last.pt").exists()


def test_one_process_calls_the_function_itself():
    assert world() == (0, 1)
    assert report_first_error(main) is main
    calls = []
    assert rank_zero_first(lambda: calls.append(1) or len(calls)) == 1
    for function in (broadcast_result, rank_zero_first):
        with pytest.raises(ZeroDivisionError):
            function(lambda: 1 // 0)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node=2"):
        make_fabric("cpu", 2)
