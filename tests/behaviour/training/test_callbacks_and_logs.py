"""Callbacks in their order, their decisions and their state; the terms of each step in the log and
in loggers."""

import functools
import warnings

import pytest
import torch
from lightning_fabric.loggers import TensorBoardLogger
from small_fit import STEPS, assert_same, build, kill, lines, short, untimed, weights

from probattn.inference import Callback, CheckpointError, fit


class Recorder(Callback):
    """Callback and logger that records its calls, and adds a metric."""

    def __init__(self):
        self.calls, self.logged, self.status = [], [], []

    def record(self, name, trainer, *_):
        self.calls.append((name, trainer.epoch, trainer.step))

    on_train_start = functools.partialmethod(record, "start")
    on_train_epoch_start = functools.partialmethod(record, "epoch start")
    on_train_end = functools.partialmethod(record, "end")

    def on_train_step_end(self, trainer, outputs):
        torch.testing.assert_close(sum(outputs.terms.values()), outputs.loss)
        self.record("step", trainer)

    def on_train_epoch_end(self, trainer, metrics):
        assert {"train_loss", "valid/nll"} <= metrics.keys()
        metrics["extra"] = 2.5
        self.record("epoch end", trainer)

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))

    def finalize(self, status):
        self.status.append(status)


def test_callbacks_are_called_in_their_order_and_loggers_get_the_records():
    recorder = Recorder()
    history = fit(*build(), callbacks=[recorder], loggers=[recorder], **short(epochs=2))
    calls = [("start", 0, 0)]
    for e in range(2):
        calls += [("epoch start", e, e * STEPS), *(("step", e, e * STEPS + i) for i in (1, 2, 3))]
        calls += [("epoch end", e + 1, (e + 1) * STEPS)]
    assert recorder.calls == [*calls, ("end", 2, 2 * STEPS)]
    assert [epoch["extra"] for epoch in history.epochs] == [2.5, 2.5]
    losses = [
        (step, values["step/loss"]) for step, values in recorder.logged if "step/loss" in values
    ]
    assert losses == [(record["step"], record["loss"]) for record in history.steps]
    logged = [values["valid/nll"] for _, values in recorder.logged if "valid/nll" in values]
    assert logged == [epoch["valid/nll"] for epoch in history.epochs]
    assert recorder.status == ["success"]


@pytest.mark.parametrize(("hook", "steps"), [("on_train_step_end", 5), ("on_train_epoch_end", 6)])
def test_a_callback_stops_the_run_which_then_is_finished(tmp_path, hook, steps):
    def stop(trainer, _):
        trainer.should_stop = trainer.should_stop or trainer.step >= 5

    callback = Callback()
    setattr(callback, hook, stop)
    for resume in (False, True):
        model, guide, train, valid = build()
        history = fit(
            model,
            guide,
            train,
            valid,
            callbacks=[callback],
            out=tmp_path,
            **short(resume=resume, epochs=9),
        )
        assert (len(history.epochs), len(history.steps)) == (2, steps)
    assert train.started == 0


class ChooseBy(Callback):
    """The epoch with the largest training loss is the best one"""

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
    history = fit(
        model, guide, train, valid, callbacks=[ChooseBy()], out=tmp_path / "whole", **short()
    )
    losses = [epoch["train_loss"] for epoch in history.epochs]
    assert history.best_epoch == 1 + losses.index(max(losses))
    expected = weights(model, guide)
    model, guide, train, valid = build()
    train.at, train.callback = (3, 1), kill
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        fit(
            model,
            guide,
            train,
            valid,
            callbacks=[ChooseBy()],
            loggers=[recorder],
            out=tmp_path / "killed",
            **short(),
        )
    assert recorder.status == ["failed"]
    model, guide, train, valid = build()
    again = ChooseBy()
    resumed = fit(
        model, guide, train, valid, callbacks=[again], out=tmp_path / "killed", **short(resume=True)
    )
    assert (resumed.best_epoch, again.best) == (history.best_epoch, max(losses))
    assert_same(weights(model, guide), expected)
    with pytest.raises(CheckpointError, match="another run"):
        fit(*build(), out=tmp_path / "whole", **short(resume=True))


@pytest.mark.parametrize(("loggers", "is_validated"), [(0, True), (1, False), (2, True)])
def test_with_a_folder_the_log_is_written_whatever_the_loggers(tmp_path, loggers, is_validated):
    recorders = [Recorder() for _ in range(loggers)]
    arguments = build() if is_validated else build()[:3]
    history = fit(*arguments, out=tmp_path, loggers=recorders, **short(epochs=2))
    assert sorted(untimed(lines(tmp_path))) == sorted(untimed(history.steps + history.epochs))
    assert len(history.epochs) == 2
    assert all(recorder.logged for recorder in recorders)


def test_every_step_is_logged_once_and_its_terms_sum_to_the_loss(tmp_path):
    loggers = [TensorBoardLogger(tmp_path, name="board", version="")]
    options = short(epochs=3, kl_anneal_epochs=1, log_every=2)
    recorder = Recorder()  # which checks the terms in each step
    history = fit(*build(), out=tmp_path, loggers=loggers, callbacks=[recorder], **options)
    assert sum(name == "step" for name, *_ in recorder.calls) == 3 * STEPS
    assert [record["step"] for record in history.steps] == [1, 2, 4, 6, 8]
    assert [record["epoch"] for record in history.steps] == [1, 1, 2, 2, 3]
    for record in history.steps:
        terms = {
            key: value
            for key, value in record.items()
            if key not in ("kind", "step", "epoch", "loss", "lr")
        }
        assert set(terms) == {"nll", "kl/network.attention.u", "penalty/network.attention.ksvd"}
        assert sum(terms.values()) == pytest.approx(record["loss"], rel=1e-5)
    assert history.steps[0]["kl/network.attention.u"] == 0
    losses = [record["loss"] for record in history.steps]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [event.value for event in events.Scalars("step/loss")] == pytest.approx(losses, rel=1e-6)
    assert [event.step for event in events.Scalars("kl/network.attention.u")] == [1, 2, 4, 6, 8]


class Stop(Callback):
    """Ends a run after twelve steps."""

    def on_train_step_end(self, trainer, outputs):
        trainer.should_stop = trainer.step == 12


@pytest.mark.parametrize("epochs", [4, 10**8])
def test_a_file_has_a_line_for_each_epoch_and_a_long_run_says_how_long_it_takes(capsys, epochs):
    options = short(epochs=epochs) | {"progress": True}
    fit(*build(), callbacks=[Stop()], **options)
    printed = capsys.readouterr().err.splitlines()
    estimates = [line for line in printed if line.startswith("about ")]
    assert len(estimates) == (epochs > 4)
    of_epochs = [line for line in printed if line not in estimates]
    titles = [line.partition(":")[0] for line in of_epochs]
    assert titles == [f"epoch {number}/{epochs}" for number in (1, 2, 3, 4)]
    assert all("valid/nll " in line and len(line) <= 80 for line in of_epochs)


def test_a_bar_fits_into_80_columns(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    fit(*build(), **short(epochs=100) | {"progress": True})
    shown = capsys.readouterr().err.replace("\n", "\r").split("\r")
    assert max(map(len, shown)) <= 80
    (last, *_) = [line for line in shown if "epoch 100/100" in line]
    assert {"accuracy", "nll"} <= set(last.replace(",", " ").split())
