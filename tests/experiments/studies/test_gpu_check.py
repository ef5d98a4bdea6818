"""The checks of a GPU, tried on a CPU."""

import torch

from probattn.experiments.studies import gpu_check


def test_all_checks_pass_on_a_cpu(monkeypatch):
    monkeypatch.setattr(gpu_check, "MODES", {"float32": {}})
    results = list(gpu_check.checks("cpu"))
    assert len(results) == len(gpu_check.LAYERS) + 2
    assert [result for result in results if not result[-1]] == []


def test_wrong_numbers_and_errors_fail(monkeypatch):
    def without_gradient(model, guide, x, y):
        return torch.ones((), dtype=torch.float64) * (1 if x.dtype == torch.float64 else 2), torch.ones(1)

    monkeypatch.setattr(gpu_check, "_loss_and_gradient", without_gradient)
    monkeypatch.setattr(gpu_check, "MODES", {"wrong": {"precision": "16"}})
    passed = {name: passed for name, _, passed in gpu_check.checks("cpu")}
    assert not passed["softmax: loss and gradient"]
    assert not passed["training, wrong"]
    assert passed["prediction"]


def test_without_a_gpu_the_command_says_so(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = command("check-gpu")
    assert (code, err.strip()) == (1, "error: PyTorch finds no GPU here, so there is nothing to check")
