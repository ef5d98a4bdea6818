"""The demo: its runs in worker processes and in turn."""

from dataclasses import replace

import pytest
import torch

from probattn.experiments.studies import study


def test_workers_return_what_runs_in_turn_return(tmp_path, tiny):
    def run(folder, workers):
        jobs = study.plan(["digits/softmax", "digits/sparse-cgp"], seeds=1, out=tmp_path / folder, changes=tiny)
        options = {"num_samples": 5, "shift": True, "severities": (3,)}
        jobs = [replace(job, options=options) for job in jobs]
        return {job.name: result for job, result in study.run_jobs(jobs, workers=workers, say=said.append)}

    said = []
    parallel, in_turn = run("parallel", 2), run("in turn", 1)
    assert sorted(text[:6] for text in said) == 2 * ["1 of 2"] + 2 * ["2 of 2"]
    assert parallel.keys() == in_turn.keys() == {"digits/softmax", "digits/sparse-cgp"}
    for name, one in parallel.items():
        assert one.metrics == pytest.approx(in_turn[name].metrics, rel=1e-3, nan_ok=True)
        torch.testing.assert_close(one.test.probs, in_turn[name].test.probs, rtol=1e-3, atol=1e-5)
        assert len(one.shift) == 15
        assert "fog/3" in one.shift
