"""What ``probattn train`` refuses before it joins processes, loads data or writes a file."""

import pytest

from probattn.experiments import presets, runs
from probattn.inference import captured
from probattn.inference.distributed import World


def test_captured_steps_of_several_gpus_are_refused_first(monkeypatch, tmp_path):
    monkeypatch.setattr(captured, "world", lambda: World(0, 4))
    monkeypatch.setattr(runs.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(runs, "make_fabric", lambda *_: pytest.fail("the processes were joined"))
    settings = presets.preset("digits/softmax").with_changes(["train.capture=true"])
    with pytest.raises(ValueError, match=r"torchrun started 4 processes: set capture=False \(train\.capture=false\)"):
        runs.train(settings, tmp_path / "run", name="digits/softmax", progress=False)
    assert not (tmp_path / "run").exists()
