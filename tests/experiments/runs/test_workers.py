"""Worker processes: results arrive whole, errors too."""

import pytest
import torch

from probattn.experiments.runs.workers import run_in_workers


def test_tensors_arrive_without_shared_memory():
    results = dict(run_in_workers(torch.arange, [3, 5], workers=2))
    assert {job: result.tolist() for job, result in results.items()} == {3: [0, 1, 2], 5: [0, 1, 2, 3, 4]}
    assert not any(result.is_shared() for result in results.values())


def test_an_error_of_a_worker_is_raised_here():
    with pytest.raises(RuntimeError, match="-1"):
        list(run_in_workers(torch.empty, [-1], workers=1))
