"""The demo: its runs in worker processes and in turn, and what is checked before the first begins."""

import pytest
import torch

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.studies import digits, study


def test_workers_return_what_runs_in_turn_return(tmp_path, tiny):
    def jobs(folder):
        names = ("digits/softmax", "digits/sparse-cgp")
        return study.plan(names, seeds=1, out=tmp_path / folder, changes=tiny)

    said = []
    parallel = [section.result for section in digits.run(jobs("parallel"), workers=2, say=said.append)]
    assert [result.name for result in parallel] == ["digits/softmax", "digits/sparse-cgp"]
    assert sorted(text[:6] for text in said) == ["1 of 2", "2 of 2"]
    in_turn = [section.result for section in digits.run(jobs("in turn"), workers=1)]
    for one, other in zip(parallel, in_turn, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, nan_ok=True)
        torch.testing.assert_close(one.probs, other.probs, rtol=1e-3, atol=1e-5)
        assert len(one.shift) == 15
        assert set(one.shift["fog"]) == set(digits.SEVERITIES)


def test_folders_are_checked_before_anything_is_trained(tmp_path):
    jobs = study.plan(["digits/softmax", "digits/kep-svgp"], seeds=1, epochs=3, out=tmp_path)
    jobs[1].folder.mkdir(parents=True)
    (jobs[1].folder / "notes.txt").write_text("mine")
    with pytest.raises((FileExistsError, SettingsError), match="kep-svgp"):
        digits.run(jobs, workers=1)
    assert not jobs[0].folder.exists()
