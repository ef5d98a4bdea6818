"""The checks of a GPU, tried on a CPU."""

import torch

from probattn.experiments.studies import gpu_check


def test_all_checks_pass_on_a_cpu(monkeypatch):
    monkeypatch.setattr(gpu_check, "MODES", {"float32": {}})
    results = list(gpu_check.checks("cpu"))
    assert len(results) == len(gpu_check.layers()) + 1
    assert [result for result in results if not result[-1]] == []


def test_wrong_numbers_and_errors_fail(monkeypatch):
    def wrong(settings, device, dtype):
        return [torch.ones(1), torch.full((1,), 1.0 if dtype == torch.float64 else float("nan")), torch.ones(1)]

    monkeypatch.setattr(gpu_check, "_values", wrong)
    monkeypatch.setattr(gpu_check, "MODES", {"wrong": {"precision": "16"}})
    assert not any(passed for *_, passed in gpu_check.checks("cpu"))
