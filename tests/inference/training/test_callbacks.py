"""Callbacks: their order, stopping, the choice of the best epoch, and their state in checkpoints."""

import pytest
import torch
from small_fit import STEPS, assert_same, build, kill, short, weights
from torch.optim.lr_scheduler import ConstantLR

from probattn.inference import Callback, CheckpointError, fit


class Recorder(Callback):
    """Callback that records its calls."""

    def __init__(self):
        self.calls = []

    def on_train_start(self, trainer):
        self.calls.append(("start", trainer.epoch, trainer.step))

    def on_train_epoch_start(self, trainer):
        self.calls.append(("epoch start", trainer.epoch, trainer.step))

    def on_train_step_end(self, trainer, outputs):
        torch.testing.assert_close(sum(outputs.terms.values()), outputs.loss)
        self.calls.append(("step", trainer.epoch, trainer.step))

    def on_train_epoch_end(self, trainer, metrics):
        assert {"train_loss", "valid/nll"} <= metrics.keys()
        self.calls.append(("epoch end", trainer.epoch, trainer.step))

    def on_train_end(self, trainer):
        self.calls.append(("end", trainer.epoch, trainer.step))


def test_methods_are_called_in_their_order():
    recorder = Recorder()
    fit(*build(), callbacks=[recorder], **short(epochs=2))
    epochs = [
        [("epoch start", e, e * STEPS)]
        + [("step", e, e * STEPS + i) for i in (1, 2, 3)]
        + [("epoch end", e + 1, (e + 1) * STEPS)]
        for e in range(2)
    ]
    assert recorder.calls == [("start", 0, 0), *epochs[0], *epochs[1], ("end", 2, 2 * STEPS)]


@pytest.mark.parametrize(("hook", "epochs", "steps"), [("on_train_step_end", 2, 5), ("on_train_epoch_end", 2, 6)])
def test_a_callback_stops_the_run_which_then_is_finished(tmp_path, hook, epochs, steps):
    class Stop(Callback):
        pass

    def stop(self, trainer, _):
        trainer.should_stop = trainer.should_stop or trainer.step >= 5

    setattr(Stop, hook, stop)
    for resume in (False, True):
        model, guide, train, valid = build()
        history = fit(model, guide, train, valid, callbacks=[Stop()], out=tmp_path, **short(resume=resume, epochs=9))
        assert (len(history.epochs), len(history.steps)) == (epochs, steps)
    assert train.started == 0


class ChooseBy(Callback):
    """The epoch with the largest training loss is the best one."""

    best = -float("inf")

    def on_train_epoch_end(self, trainer, metrics):
        trainer.is_best = metrics["train_loss"] > self.best
        self.best = max(self.best, metrics["train_loss"])

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state_dict):
        self.best = state_dict["best"]


def test_a_callback_chooses_the_best_epoch_and_its_state_is_resumed(tmp_path):
    model, guide, train, valid = build()
    history = fit(model, guide, train, valid, callbacks=[ChooseBy()], out=tmp_path / "whole", **short())
    losses = [epoch["train_loss"] for epoch in history.epochs]
    assert history.best_epoch == 1 + losses.index(max(losses))
    expected = weights(model, guide)
    model, guide, train, valid = build()
    train.at, train.callback = (3, 1), kill
    with pytest.raises(KeyboardInterrupt):
        fit(model, guide, train, valid, callbacks=[ChooseBy()], out=tmp_path / "killed", **short())
    model, guide, train, valid = build()
    again = ChooseBy()
    resumed = fit(model, guide, train, valid, callbacks=[again], out=tmp_path / "killed", **short(resume=True))
    assert (resumed.best_epoch, again.best) == (history.best_epoch, max(losses))
    assert_same(weights(model, guide), expected)


def test_what_a_callback_adds_to_the_metrics_is_logged():
    class Extra(Callback):
        def on_train_epoch_end(self, trainer, metrics):
            metrics["extra"] = 2.5

    history = fit(*build(), callbacks=[Extra()], **short(epochs=1))
    assert history.epochs[0]["extra"] == 2.5


def test_a_callback_lowers_the_learning_rate_of_the_next_steps():
    class Halve(Callback):
        def on_train_step_end(self, trainer, outputs):
            for group in trainer.optimizer.param_groups:
                group["lr"] *= 0.5

    history = fit(*build(), scheduler=lambda each: ConstantLR(each, 1.0), callbacks=[Halve()], **short(epochs=1))
    assert [step["lr"] for step in history.steps] == [0.02, 0.01, 0.005]


def test_resuming_with_other_callbacks_is_refused(tmp_path):
    fit(*build(), callbacks=[ChooseBy()], out=tmp_path, **short(epochs=1))
    with pytest.raises(CheckpointError, match="another run"):
        fit(*build(), out=tmp_path, **short(resume=True, epochs=1))
