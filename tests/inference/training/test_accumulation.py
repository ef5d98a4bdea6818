"""Accumulated gradients are those of one large batch: the likelihood's mean, and the KL once."""

import pytest
import torch
from small_fit import build, data, short, weights
from torch import nn
from torch.utils.data import DataLoader

from probattn.inference import NonFiniteError, TrainOptions, fit
from probattn.inference.training.options import MAX_COUNT


class SameSample(nn.Module):
    """Guide that draws the same posterior sample at each call."""

    def __init__(self, guide):
        super().__init__()
        self.guide = guide

    def forward(self, *args):
        torch.manual_seed(5)
        return self.guide(*args)


def trained(batch_size, **options):
    model, guide, *_ = build()
    model, guide = model.double(), SameSample(guide.double())
    batches = [(x.double(), y) for x, y in DataLoader(data(), batch_size=batch_size)]
    few = {"epochs": 3, "samples_per": "batch", "accelerator": "cpu", "weight_decay": 0.1, "vectorize": True}
    history = fit(model, guide, batches, **short(**few | options))
    return weights(model, guide), history


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": 0.05, "kl_anneal_epochs": 1, "warmup_epochs": 1},
        {"guide_optimizer": "ngd", "kl_weight": 0.5},
        {"elbo": "trace"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("size", "number"), [(4, 2), (3, 3), (1, 8)])
def test_accumulated_batches_are_one_batch(size, number, options):
    """Also batches of 3, 3 and 2 examples. Float64: Adam divides gradients by their size, so equality is strict."""
    whole, expected = trained(8, **options)
    parts, found = trained(size, accumulate_grad_batches=number, **options)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-7, atol=1e-9, msg=name)
    assert len(found.steps) == len(expected.steps) == 3
    for one, other in zip(found.steps, expected.steps, strict=True):
        assert one.keys() == other.keys()
        assert [v for v in one.values() if v != "step"] == pytest.approx([v for v in other.values() if v != "step"])


def test_the_last_step_of_an_epoch_takes_the_batches_that_are_left():
    """Batches of 3, 3 and 2 examples, two a step: steps of 6 and 2 examples."""
    _, found = trained(3, accumulate_grad_batches=2)
    assert [step["step"] for step in found.steps] == [1, 2, 3, 4, 5, 6]
    parts, expected = trained(8)
    assert found.steps[0]["lr"] == expected.steps[0]["lr"]
    total = (6 * found.steps[0]["loss"] + 2 * found.steps[1]["loss"]) / 8
    assert found.epochs[0]["train_loss"] == pytest.approx(total)


def test_errors_name_the_step():
    model, guide, *_ = build()
    batches = [(x * float("nan") if i == 2 else x, y) for i, (x, y) in enumerate(DataLoader(data(), batch_size=2))]
    with pytest.raises(NonFiniteError, match="epoch 1, after step 1: NaN or Inf in the inputs"):
        fit(model, guide, batches, **short(accumulate_grad_batches=2))


@pytest.mark.parametrize("number", [0, MAX_COUNT + 1])
def test_numbers_out_of_bounds_are_refused(number):
    with pytest.raises(ValueError, match=f"accumulate_grad_batches={number}"):
        TrainOptions(accumulate_grad_batches=number)
