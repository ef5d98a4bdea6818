"""Fine-tuning by the command: a pretrained encoder, its twin, resuming and evaluation without the
encoder's folder."""

import shutil

import pytest
import torch

from probattn.experiments.config import presets
from probattn.experiments.runs import train
from probattn.experiments.runs.build import build
from probattn.experiments.runs.sources import load_data
from probattn.inference.io import checkpoint
from probattn.inference.training.optimizers import lr_factors
from probattn.inference.training.trainer import Trainer

pytest.importorskip("transformers")
from tiny_encoder import write_encoder  # noqa: E402

TINY = ("network.max_length=12", "train.epochs=2", "train.log_every=1")
KEP, SOFTMAX, SPARSE = "finetune/cola", "finetune/cola-softmax", "finetune/cola-sparse"
NEW = {  # a replaced layer's parameters that are not the encoder's
    "softmax": set(),
    "kep-svgp": {"projection.weights", "log_scale", "out.weight", "out.bias"},
    "sparse-cgp": {
        *("inducing.0", "inducing.1", "latent.weight", "log_scales"),
        *("out.weight", "out.bias"),
    },
}


pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def encoder(tmp_path):
    write_encoder(tmp_path / "bert")
    return tmp_path / "bert"


def tiny(name, encoder):
    rank = ["layer.rank=3"] if name == KEP else []
    return presets.preset(name).with_changes([*TINY, *rank, f"network.encoder={encoder}"])


@pytest.mark.parametrize("name", [KEP, SOFTMAX, SPARSE])
def test_only_the_encoder_has_the_encoders_learning_rate(corpus, encoder, name):
    settings = tiny(name, encoder)
    model, _ = build(settings, load_data(settings, corpus))
    factors = lr_factors(model, settings.train.lr_scale)
    fast = {weight for weight, factor in factors.items() if factor == 1}
    layer = "network.encoder.wrapped.encoder.layer.1.attention.self.layer."
    assert fast == {
        "network.head.weight",
        "network.head.bias",
        *(layer + weight for weight in NEW[settings.layer.name]),
    }
    assert all(factor == 0.05 for weight, factor in factors.items() if weight not in fast)


def test_a_run_that_was_stopped_resumes_exactly_without_the_encoders_folder(
    tmp_path, corpus, encoder, monkeypatch
):
    settings, options = tiny(KEP, encoder), {"name": KEP, "root": corpus, "progress": False}
    train.train(settings, tmp_path / "whole", **options)
    validate, calls = Trainer._validate, []

    def interrupted(trainer):
        calls.append(trainer.epoch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validate(trainer)

    monkeypatch.setattr(Trainer, "_validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.train(settings, tmp_path / "stopped", **options)
    shutil.rmtree(encoder)
    train.train(settings, tmp_path / "stopped", resume=True, **options)
    whole, stopped = (checkpoint.read(tmp_path / run / "last.pt") for run in ("whole", "stopped"))
    for part in ("model", "guide"):
        assert whole[part].keys() == stopped[part].keys()
        assert all(torch.equal(value, stopped[part][key]) for key, value in whole[part].items())
