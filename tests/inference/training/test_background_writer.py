"""Checkpoints written in a thread are those of the moment, in their order, and their errors reach the run."""

import threading

import pytest
import torch

from probattn import SoftmaxAttention, guides
from probattn.inference import TrainOptions, fit
from probattn.inference.io import checkpoint
from probattn.inference.training import run_checkpoints, trainer
from probattn.inference.training.background_writer import BackgroundWriter, snapshot
from probattn.models import Classifier, ViT


def test_tasks_run_in_their_order_and_at_most_one_waits():
    writer, gate, done = BackgroundWriter(), threading.Event(), []
    writer.submit(gate.wait)
    writer.submit(lambda: done.append(1))
    blocked = threading.Thread(target=lambda: writer.submit(lambda: done.append(2)))
    blocked.start()
    assert done == []
    gate.set()
    blocked.join()
    writer.wait()
    assert done == [1, 2]


def test_the_error_of_a_task_is_raised_by_the_next_call_and_tasks_before_that_do_not_run():
    def fail():
        gate.wait()
        raise OSError("no space left")

    writer, gate, done = BackgroundWriter(), threading.Event(), []
    writer.submit(fail)
    writer.submit(lambda: done.append(1))
    gate.set()
    with pytest.raises(OSError, match="no space left"):
        writer.wait()
    assert done == []
    writer.submit(lambda: done.append(2))
    writer.wait()
    assert done == [2]


def test_a_snapshot_does_not_change_with_its_tensors():
    layer = torch.nn.Linear(2, 2)
    state = {"weights": layer.state_dict(), "list": [layer.bias, (1, "a")], "number": 3}
    copied = snapshot(state)
    before = layer.bias.detach().clone()
    with torch.no_grad():
        layer.bias.zero_()
    assert torch.equal(copied["weights"]["bias"], before)
    assert torch.equal(copied["list"][0], before)
    assert copied["weights"]._metadata == state["weights"]._metadata
    assert (copied["list"][1], copied["number"]) == ((1, "a"), 3)


def run(folder, *, validates=True, **options):
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(depth=1, attention=SoftmaxAttention, **sizes), num_data=6)
    batches = [(torch.randn(3, 1, 4, 4), torch.arange(3)) for _ in range(2)]
    options = TrainOptions(**{"epochs": 3, "num_samples": 1, "lr": 0.01} | options)
    valid = [(torch.randn(3, 1, 4, 4), torch.arange(3))] if validates else None
    guide = guides.for_model(model)
    return fit(model, guide, batches, valid, options=options, out=folder, progress=False)


@pytest.fixture
def _in_background(monkeypatch):
    monkeypatch.setattr(trainer, "writes_in_background", lambda device: True)


def content_of(folder):
    files = [checkpoint.read(folder / name) for name in ("last.pt", "best.pt")]
    return [{**each["model"], **each["guide"]} | {"epoch": each["extra"]["epoch"]} for each in files]


def test_files_written_in_the_background_are_those_that_training_waits_for(tmp_path, monkeypatch):
    run(tmp_path / "waits")
    monkeypatch.setattr(trainer, "writes_in_background", lambda device: True)
    run(tmp_path / "background")
    for one, other in zip(content_of(tmp_path / "waits"), content_of(tmp_path / "background"), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)


@pytest.mark.usefixtures("_in_background")
def test_an_error_of_the_background_ends_the_run(tmp_path, monkeypatch):
    def fail(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(run_checkpoints.checkpoint, "save_content", fail)
    with pytest.raises(OSError, match=r"No space left on device: .*last.pt"):
        run(tmp_path)


@pytest.mark.usefixtures("_in_background")
def test_what_was_submitted_before_an_error_of_training_is_written(tmp_path, monkeypatch):
    train_epoch = trainer.Trainer._train_epoch

    def fails_later(self, *args):
        if self.epoch == 1:
            raise KeyError
        return train_epoch(self, *args)

    monkeypatch.setattr(trainer.Trainer, "_train_epoch", fails_later)
    with pytest.raises(KeyError):
        run(tmp_path)
    assert [each["epoch"] for each in content_of(tmp_path)] == [1, 1]


def test_last_is_written_every_few_epochs_after_the_best_and_at_the_end(tmp_path, monkeypatch):
    saved = []
    save_last = run_checkpoints.RunCheckpoints.save_last
    monkeypatch.setattr(
        run_checkpoints.RunCheckpoints,
        "save_last",
        lambda self, state: (saved.append(state["epoch"]), save_last(self, state))[1],
    )
    values = iter([3.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    monkeypatch.setattr(trainer, "validate", lambda *args, **kwargs: {"nll": next(values), "accuracy": 0.0})
    history = run(tmp_path / "validates", epochs=7, checkpoint_every=4)
    assert saved == [1, 2, 4, 7]
    assert history.best_epoch == 2
    saved.clear()
    history = run(tmp_path / "does not", validates=False, epochs=7, checkpoint_every=4)
    assert saved == [4, 7]
    assert history.best_epoch == 7
    assert [each["epoch"] for each in content_of(tmp_path / "does not")] == [7, 7]
