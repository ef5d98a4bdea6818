"""Lightning's trainer takes the steps of fit."""

import pytest
import torch
from small_fit import build, data, short, weights
from torch.testing import assert_close
from torch.utils.data import DataLoader

from probattn.inference import Callback, TrainOptions, fit, predict

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:UserWarning", "ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning"
)

OPTIONS = {
    "lr": 0.02,
    "weight_decay": 0.1,
    "warmup_epochs": 0.5,
    "kl_anneal_epochs": 1,
    "guide_lr": 0.05,
    "num_samples": 3,
    "alpha_start": 0.2,
}


class Seeded(Callback):
    """The same posterior samples in each training step, whatever the trainer draws in between."""

    def on_train_epoch_start(self, trainer):
        torch.manual_seed(trainer.step)

    def on_train_step_end(self, trainer, outputs):
        torch.manual_seed(trainer.step)


class SeededByLightning(lightning.Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        torch.manual_seed(trainer.global_step)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())


def trainer(tmp_path, **options):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "accelerator": "cpu",
    }
    return lightning.Trainer(
        default_root_dir=tmp_path, enable_checkpointing=False, **quiet | options
    )


def test_its_losses_and_weights_are_those_of_fit(tmp_path):
    from probattn.inference.lightning import SVIModule

    loader = DataLoader(data(), batch_size=3)
    model, guide, *_ = build()
    history = fit(model, guide, list(loader), callbacks=[Seeded()], **short(epochs=2, **OPTIONS))
    expected = weights(model, guide)
    model, guide, *_ = build()
    recorder = SeededByLightning()
    module = SVIModule(model, guide, options=TrainOptions(**OPTIONS))
    trainer(tmp_path, max_epochs=2, callbacks=[recorder]).fit(module, loader)
    assert recorder.losses == pytest.approx([step["loss"] for step in history.steps], rel=1e-6)
    for name, value in weights(model, guide).items():
        assert_close(value, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_validation_metrics_are_of_the_whole_set_and_its_checkpoint_holds_model_and_guide(tmp_path):
    from probattn.inference.lightning import SVIModule

    model, guide, _, valid = build(guide="delta")
    module = SVIModule(model, guide, options=TrainOptions(num_samples=2))
    run = trainer(tmp_path, max_epochs=1, accumulate_grad_batches=2)
    run.fit(module, DataLoader(data(), batch_size=3), valid)
    assert run.global_step == 2
    assert {
        "train_loss",
        "train/nll",
        "valid/nll",
        "valid/log_prob",
        "valid/ece",
    } <= run.callback_metrics.keys()
    run.save_checkpoint(tmp_path / "whole.ckpt")
    again, other, *_ = build(seed=4, guide="delta")
    loaded = SVIModule.load_from_checkpoint(tmp_path / "whole.ckpt", model=again, guide=other)
    for name, value in weights(model, guide).items():
        assert torch.equal(weights(loaded.model, loaded.guide)[name], value), name
    (first, second) = run.predict(module, valid)
    for values, (x, _) in zip((first, second), valid, strict=True):
        assert_close(values["probs"], predict(model, guide, x, num_samples=1).probs)
    assert first.keys() == {"probs", "expected_entropy", "mutual_information", "labels"}


def test_what_lightnings_trainer_has_itself_is_refused():
    from probattn.inference.lightning import SVIModule

    model, guide, *_ = build()
    for options in ({"clip_norm": 1.0, "patience": 3}, {"guide_optimizer": "ngd"}):
        with pytest.raises(ValueError, match=", ".join(options)):
            SVIModule(model, guide, options=TrainOptions(**options))
