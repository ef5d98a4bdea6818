"""Runs of a study in worker processes and in turn."""

from dataclasses import replace

import pandas as pd

from probattn.experiments.studies import collect, study


def test_workers_store_what_runs_in_turn_store(tmp_path, tiny):
    def run(folder, workers):
        jobs = study.plan(["digits/softmax", "digits/sparse-cgp"], seeds=1, out=tmp_path / folder, changes=tiny)
        options = {"num_samples": 5, "shift": True, "severities": (3,)}
        study.run_study([replace(job, options=options) for job in jobs], workers=workers, say=said.append)
        return collect.rows(collect.read_runs([tmp_path / folder]))

    said = []
    parallel, in_turn = run("parallel", 2), run("in turn", 1)
    assert sorted(text[:6] for text in said) == 2 * ["1 of 2"] + 2 * ["2 of 2"]
    assert in_turn["run"].nunique() == 2
    assert in_turn["set"].str.startswith("shift/").sum() == 2 * 15
    pd.testing.assert_frame_equal(parallel, in_turn, rtol=1e-3, atol=1e-5)
