"""The best epoch by the monitored metric is kept, also in a run that is killed, and patience ends a
run."""

import math

import pytest
import torch
from small_fit import Killed, assert_same, build, short, weights

from probattn.inference import CheckpointError, fit
from probattn.inference.io import checkpoint
from probattn.inference.training import trainer
from probattn.models.likelihoods import Gaussian


@pytest.fixture
def scripted(monkeypatch):
    """Let validation return given values by epoch, also when the run is resumed; return the weights
    that it sees."""

    def script(values, monitor="nll"):
        validate, seen = trainer.Trainer._validate, []

        def scripted_validate(self):
            seen.append(weights(self.model, self.guide))
            return validate(self) | {f"valid/{monitor}": values[self.epoch]}

        monkeypatch.setattr(trainer.Trainer, "_validate", scripted_validate)
        return seen

    return script


@pytest.mark.parametrize(
    ("monitor", "values", "best", "on_disk"),
    [
        ("nll", [3.0, 1.0, 1.0, 2.0], 2, True),
        ("accuracy", [0.1, 0.5, 0.7, 0.2], 3, False),
        ("ece", [math.nan, 0.3, math.nan, 0.4], 2, False),
        ("auroc", [math.nan] * 4, 1, True),
    ],
)
def test_the_best_epoch_is_kept_and_the_model_ends_with_it(
    tmp_path, scripted, monitor, values, best, on_disk
):
    seen = scripted(values, monitor)
    model, guide, train, valid = build()
    history = fit(
        model, guide, train, valid, out=tmp_path if on_disk else None, **short(monitor=monitor)
    )
    assert history.best_epoch == best
    assert history.best_value == values[best - 1] or math.isnan(values[best - 1])
    assert_same(weights(model, guide), seen[best - 1])
    if on_disk:
        model, guide, *_ = build(seed=7)
        assert checkpoint.load(tmp_path / "best.pt", model, guide)["epoch"] == best
        assert_same(weights(model, guide), seen[best - 1])
        checkpoint.load(tmp_path / "last.pt", model, guide)
        assert_same(weights(model, guide), seen[-1])


def test_patience_counts_epochs_without_a_better_one(scripted):
    scripted([1.0, 2.0, 0.5, 0.5, 0.6, 0.1])
    history = fit(*build(), **short(epochs=6, monitor="nll", patience=2))
    assert (len(history.epochs), history.best_epoch) == (5, 3)


def test_without_validation_the_last_epoch_counts(tmp_path):
    ends = []
    for out in (tmp_path, None):
        model, guide, train, _ = build()
        history = fit(model, guide, train, out=out, **short(epochs=2))
        assert (history.best_epoch, history.best_value) == (2, None)
        ends.append(weights(model, guide))
    assert_same(*ends)


def test_the_default_monitor_is_the_nll_of_classes_and_the_log_probability_of_numbers(tmp_path):
    history = fit(*build(), **short(epochs=2))
    assert history.best_value == min(epoch["valid/nll"] for epoch in history.epochs)
    model, guide, *_ = build(likelihood=Gaussian())
    batches = [(torch.randn(8, 4, 3), torch.randn(8, 1))]
    history = fit(model, guide, batches, batches, **short(epochs=2))
    assert history.best_value == max(epoch["valid/log_prob"] for epoch in history.epochs)
    with pytest.raises(KeyError, match="valid/accuracy"):
        fit(model, guide, batches, batches, out=tmp_path, **short(epochs=2, monitor="accuracy"))
    assert not (tmp_path / "last.pt").exists()


NLL = [3.0, 1.0, 2.0, 2.5, 0.5]


def trained(out, callbacks=(), **options):
    built, options = build(seed=3), short(epochs=5, monitor="nll", **options)
    model, guide, *_ = built
    history = fit(*built, out=out, callbacks=callbacks, **options)
    return history, weights(model, guide)


def test_a_resumed_run_keeps_the_best_epoch_from_before_it_was_killed(tmp_path, scripted):
    scripted([3.0, 1.0, 2.0, 2.5, 1.5])
    _, end = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callbacks=[Killed(after=3)])
    history, last = trained(tmp_path / "run", callbacks=[Killed(after=5)], resume=True)
    assert (history.best_epoch, history.best_value) == (2, 1.0)
    assert_same(last, end)


@pytest.mark.parametrize(
    "lose", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-100])]
)
def test_lost_best_weights_are_an_error(tmp_path, scripted, lose):
    scripted(NLL)
    trained(tmp_path)
    lose(tmp_path / "best.pt")
    with pytest.raises(CheckpointError, match=r"best\.pt"):
        trained(tmp_path, resume=True)
