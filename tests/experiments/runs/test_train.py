"""`probattn train` fails before it connects processes, loads data or writes a file."""

import pytest

from probattn.experiments.config import presets
from probattn.experiments.runs import train
from probattn.inference.distributed.collectives import World
from probattn.inference.training import cuda_graph


def test_captured_steps_of_several_gpus_are_refused_first(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graph, "world", lambda: World(0, 4))
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train, "make_fabric", lambda *_: pytest.fail("the processes were joined"))
    settings = presets.preset("digits/softmax").with_changes(["train.capture=true"])
    with pytest.raises(ValueError, match=r"torchrun started 4 processes: set capture=False \(train\.capture=false\)"):
        train.train(settings, tmp_path / "run", name="digits/softmax", progress=False)
    assert not (tmp_path / "run").exists()
