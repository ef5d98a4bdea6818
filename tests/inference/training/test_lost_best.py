"""A best.pt that is missing, damaged or of another epoch is noticed, and what the error says to do works."""

import re
import shutil

import pytest
from small_fit import assert_same, build, short, untimed, weights

from probattn.inference import CheckpointError, fit
from probattn.inference.io import checkpoint
from probattn.inference.training import trainer
from probattn.inference.training.best_weights import read_best
from probattn.inference.training.run_checkpoints import RunCheckpoints

NLL = [3.0, 1.0, 2.0, 2.5, 0.5, 4.0]


@pytest.fixture
def _scripted(monkeypatch):
    """Validation returns a given value in each epoch, also when the run is resumed."""
    own = trainer.Trainer._validate
    monkeypatch.setattr(trainer.Trainer, "_validate", lambda self: own(self) | {"valid/nll": NLL[self.epoch - 1]})


def trained(out, epochs=4, **options):
    model, guide, train, valid = build(seed=3)
    history = fit(model, guide, train, valid, out=out, **short(epochs=epochs, monitor="nll", **options))
    return history, weights(model, guide)


def stop_after(monkeypatch, name, epoch):
    """Interrupt the run before it writes a file in an epoch."""
    own = RunCheckpoints._save

    def save(self, which, **extra):
        if (which, extra["epoch"]) == (name, epoch):
            raise KeyboardInterrupt
        own(self, which, **extra)

    monkeypatch.setattr(RunCheckpoints, "_save", save)


def missing(run):
    (run / "best.pt").unlink()


def damaged(run):
    (run / "best.pt").write_bytes((run / "best.pt").read_bytes()[:-100])


def of_another_epoch(run):
    model, guide, _, _ = build()
    checkpoint.save(run / "best.pt", model, guide, epoch=1, value=3.0)


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize("epochs", [4, 6])
@pytest.mark.parametrize("lose", [missing, damaged, of_another_epoch])
def test_lost_best_weights_are_an_error_whose_advice_works(tmp_path, monkeypatch, lose, epochs):
    """In a finished run and in one of six epochs that was stopped after the fourth; the best epoch was the second."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, "last.pt", 5)
        if epochs == 4:
            trained(run)
        else:
            with pytest.raises(KeyboardInterrupt):
                trained(run, epochs=6)
    kept = shutil.copy(run / "best.pt", tmp_path / "kept.pt")
    lose(run)
    for attempt in (lambda: trained(run, epochs, resume=True), lambda: read_best(run)):
        with pytest.raises(CheckpointError, match=r"best\.pt .*the best epoch of this run is 2") as caught:
            attempt()
    advice = re.search(r"by copying (\S+) to (\S+), and resume", str(caught.value))

    again = shutil.copytree(run, tmp_path / "again")
    shutil.copy(kept, again / "best.pt")
    history, _ = trained(again, epochs, resume=True)
    assert history.best_epoch == (2 if epochs == 4 else 5)

    shutil.copy(*advice.groups())
    assert read_best(run)["extra"]["epoch"] == 4
    history, found = trained(run, epochs, resume=True)
    assert (history.best_epoch, history.best_value) == ((4, 2.5) if epochs == 4 else (5, 0.5))
    assert read_best(run)["extra"]["epoch"] == history.best_epoch
    model, guide, _, _ = build()
    checkpoint.load(run / "best.pt", model, guide)
    assert_same(found, weights(model, guide))


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize("epoch", [1, 2, 5])
@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_a_run_killed_between_its_two_checkpoints_loses_none(tmp_path, monkeypatch, name, epoch):
    """Also one that has ended: its best.pt is written from last.pt."""
    expected, end = trained(tmp_path / "whole", epochs=5)
    with monkeypatch.context() as patch:
        stop_after(patch, name, epoch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "run", epochs=5)
    if name == "best.pt":
        with pytest.raises(CheckpointError, match=r"last\.pt has the weights of its epoch .: resume"):
            read_best(tmp_path / "run")
    history, found = trained(tmp_path / "run", epochs=5, resume=True)
    assert_same(found, end)
    assert untimed(history.epochs) == untimed(expected.epochs)
    assert (history.best_epoch, history.best_value) == (expected.best_epoch, expected.best_value) == (5, 0.5)
    assert read_best(tmp_path / "run")["extra"]["epoch"] == 5


def test_best_weights_without_the_state_of_their_run_are_not_overwritten(tmp_path):
    trained(tmp_path, epochs=1)
    (tmp_path / "last.pt").unlink()
    (tmp_path / "log.jsonl").unlink()
    assert read_best(tmp_path)["extra"]["epoch"] == 1
    with pytest.raises(CheckpointError, match=r"without last\.pt"):
        trained(tmp_path, epochs=1, resume=True)


def test_a_best_file_that_disappears_during_the_run_is_noticed(tmp_path):
    model, guide, train, valid = build()
    train.at, train.callback = (3, 1), lambda batch: (tmp_path / "best.pt").unlink()
    with pytest.raises(CheckpointError, match=r"best\.pt is missing"):
        fit(model, guide, train, valid, out=tmp_path, **short(epochs=3, monitor="nll", lr=1e-9, min_lr=0.0, patience=9))
