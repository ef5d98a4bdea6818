"""Turns of one step: what is measured here is not judged."""

import pytest

from probattn.experiments.bench import timing


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    monkeypatch.setattr(timing, "TURN", 0.0)
