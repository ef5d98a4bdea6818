"""A run that is killed between its two checkpoints loses none, and a lost best.pt is an error."""

import pytest
from small_fit import assert_same, build, short, untimed, weights

from probattn.inference import CheckpointError, fit
from probattn.inference.io import checkpoint
from probattn.inference.training import trainer

NLL = [3.0, 1.0, 2.0, 2.5, 0.5, 4.0]


@pytest.fixture
def _scripted(monkeypatch):
    """Validation returns a given value in each epoch, also when the run is resumed."""
    validate = trainer.Trainer._validate
    monkeypatch.setattr(trainer.Trainer, "_validate", lambda self: validate(self) | {"valid/nll": NLL[self.epoch]})


def trained(out, epochs=4, **options):
    model, guide, train, valid = build(seed=3)
    history = fit(model, guide, train, valid, out=out, **short(epochs=epochs, monitor="nll", **options))
    return history, weights(model, guide)


def stop_before(monkeypatch, name, epoch):
    """Interrupt the run before it writes a file in an epoch."""
    save = checkpoint.save

    def stopping(path, model, guide, **extra):
        if (path.name, extra["epoch"]) == (name, epoch):
            raise KeyboardInterrupt
        save(path, model, guide, **extra)

    monkeypatch.setattr(checkpoint, "save", stopping)


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize("epoch", [1, 2, 5])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_a_run_killed_between_its_two_checkpoints_loses_none(tmp_path, monkeypatch, name, every, epoch):
    expected, end = trained(tmp_path / "whole", epochs=5, checkpoint_every=every)
    with monkeypatch.context() as patch:
        stop_before(patch, name, epoch)
        try:
            trained(tmp_path / "run", epochs=5, checkpoint_every=every)
        except KeyboardInterrupt:
            assert (name, epoch, every) not in {("last.pt", 1, 3), ("last.pt", 2, 3)}
    history, last = trained(tmp_path / "run", epochs=5, resume=True, checkpoint_every=every)
    assert_same(last, end)
    assert untimed(history.epochs) == untimed(expected.epochs)
    assert (history.best_epoch, history.best_value) == (expected.best_epoch, expected.best_value) == (5, 0.5)
    assert checkpoint.read(tmp_path / "run" / "best.pt")["extra"]["epoch"] == 5


def missing(path):
    path.unlink()


def damaged(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize("lose", [missing, damaged])
def test_lost_best_weights_are_an_error(tmp_path, lose):
    trained(tmp_path)
    lose(tmp_path / "best.pt")
    with pytest.raises(CheckpointError, match=r"best\.pt"):
        trained(tmp_path, resume=True)


def test_a_best_file_that_disappears_during_the_run_is_noticed(tmp_path):
    model, guide, train, valid = build()
    train.at, train.callback = (3, 1), lambda batch: (tmp_path / "best.pt").unlink()
    with pytest.raises(CheckpointError, match=r"best\.pt"):
        fit(model, guide, train, valid, out=tmp_path, **short(epochs=3, monitor="nll", lr=1e-9, min_lr=0.0, patience=9))
