"""Training without TensorBoard, which takes longer than these tests' epochs."""

import pytest

from probattn.inference.training import run_log


@pytest.fixture(autouse=True)
def _without_tensorboard(monkeypatch):
    monkeypatch.setattr(run_log, "find_spec", lambda name: None)
