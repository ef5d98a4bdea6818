"""The best epoch by the monitored metric is kept, and patience ends a run."""

import math

import pytest
import torch
from small_fit import assert_same, build, short, weights

from probattn.inference import fit
from probattn.inference.io import checkpoint
from probattn.inference.training import trainer
from probattn.models.likelihoods import Gaussian


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("nll", [3.0, 1.0, 1.0, 2.0], 2),
        ("accuracy", [0.1, 0.5, 0.7, 0.2], 3),
        ("log_prob", [-1.0, -2.0, -0.5, -3.0], 3),
        ("ece", [math.nan, 0.3, math.nan, 0.4], 2),
        ("auroc", [math.nan, math.nan, math.nan, math.nan], 1),
    ],
)
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_best_epoch_is_kept_and_the_model_ends_with_it(tmp_path, monkeypatch, monitor, values, best, on_disk):
    model, guide, train, valid = build()
    seen = []

    def validate(model, guide, data, *, num_samples):
        assert (data, num_samples) == (valid, 3)
        seen.append(weights(model, guide))
        return {monitor: values[len(seen) - 1], "other": 0.0}

    monkeypatch.setattr(trainer, "validate", validate)
    out = tmp_path if on_disk else None
    history = fit(model, guide, train, valid, out=out, **short(monitor=monitor))
    assert history.best_epoch == best
    assert history.best_value == values[best - 1] or math.isnan(values[best - 1])
    assert_same(weights(model, guide), seen[best - 1])
    if on_disk:
        model, guide, _, _ = build(seed=7)
        extra = checkpoint.load(tmp_path / "best.pt", model, guide)
        assert extra["epoch"] == best
        assert_same(weights(model, guide), seen[best - 1])
        checkpoint.load(tmp_path / "last.pt", model, guide)
        assert_same(weights(model, guide), seen[-1])


def test_patience_counts_epochs_without_a_better_one(monkeypatch):
    values = iter([1.0, 2.0, 0.5, 0.5, 0.6, 0.1])
    monkeypatch.setattr(trainer, "validate", lambda *args, **kwargs: {"nll": next(values)})
    model, guide, train, valid = build()
    history = fit(model, guide, train, valid, **short(epochs=6, monitor="nll", patience=2))
    assert [epoch["valid/nll"] for epoch in history.epochs] == [1.0, 2.0, 0.5, 0.5, 0.6]
    assert history.best_epoch == 3


@pytest.mark.parametrize("on_disk", [True, False])
def test_without_validation_the_last_epoch_counts(tmp_path, on_disk):
    model, guide, train, _ = build()
    history = fit(model, guide, train, out=tmp_path if on_disk else None, **short())
    assert (history.best_epoch, history.best_value) == (4, None)
    end = weights(model, guide)
    reference, other, train, _ = build()
    fit(reference, other, train, **short())
    assert_same(end, weights(reference, other))
    assert "valid/accuracy" not in history.epochs[0]


def test_a_monitor_that_the_model_does_not_have_is_an_error(tmp_path):
    model, guide, _, _ = build(likelihood=Gaussian())
    batches = [(torch.randn(4, 4, 3), torch.randn(4, 1))]
    with pytest.raises(KeyError, match="valid/accuracy"):
        fit(model, guide, batches, batches, out=tmp_path, **short(monitor="accuracy"))
    assert not (tmp_path / "last.pt").exists()
    model, guide, train, _ = build()
    with pytest.raises(ValueError, match="monitor='acuracy'"):
        fit(model, guide, train, train, **short(monitor="acuracy"))
    assert train.started == 0


def test_the_default_monitor_of_a_classifier_is_its_negative_log_likelihood():
    model, guide, train, valid = build()
    history = fit(model, guide, train, valid, **short(lr=0.05))
    assert history.best_value == min(epoch["valid/nll"] for epoch in history.epochs)


def test_the_default_monitor_of_a_regression_is_its_log_probability():
    model, guide, _, _ = build(likelihood=Gaussian())
    batches = [(torch.randn(8, 4, 3), torch.randn(8, 1))]
    history = fit(model, guide, batches, batches, **short())
    assert history.best_value == max(epoch["valid/log_prob"] for epoch in history.epochs)
