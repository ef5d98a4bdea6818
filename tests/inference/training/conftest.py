"""Training without TensorBoard, which takes longer than these tests' epochs."""

import pytest

from probattn.inference.training import callbacks


@pytest.fixture(autouse=True)
def _without_tensorboard(monkeypatch):
    monkeypatch.setattr(callbacks, "find_spec", lambda name: None)
