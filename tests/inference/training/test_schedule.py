"""Learning rates and KL weights by formula at every step, and the options' bounds."""

import dataclasses
import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from probattn.inference import TrainOptions
from probattn.inference.metrics import OF_CLASSES
from probattn.inference.training.optimizers import scheduled_lr
from probattn.inference.training.step import StepCoefficients

SCHEDULES = ("cosine", "linear")


def rates(schedule, *, warmup, min_lr, steps=20):
    options = TrainOptions(schedule=schedule, epochs=steps, warmup_epochs=warmup, lr=0.1, min_lr=min_lr)
    return [scheduled_lr(step, options=options, steps_per_epoch=1) for step in range(steps + 1)]


def torchs(schedule, *, warmup, min_lr, steps=20):
    """The same by PyTorch's schedulers."""
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)
    rest = max(steps - warmup, 1)
    decay = {
        "cosine": lambda: CosineAnnealingLR(optimizer, T_max=rest, eta_min=min_lr),
        "linear": lambda: LinearLR(optimizer, start_factor=1.0, end_factor=min_lr / 0.1, total_iters=rest),
    }[schedule]()
    scheduler = decay
    if warmup:
        rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        scheduler = SequentialLR(optimizer, [rise, decay], milestones=[warmup])
    found = []
    for _ in range(steps + 1):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1, 4, 19])
@pytest.mark.parametrize("min_lr", [0.0, 0.02])
def test_the_learning_rate_is_that_of_pytorchs_schedulers(schedule, warmup, min_lr):
    found = rates(schedule, warmup=warmup, min_lr=min_lr)
    assert found == pytest.approx(torchs(schedule, warmup=warmup, min_lr=min_lr), rel=1e-9, abs=1e-12)
    assert found[warmup] == pytest.approx(0.1)
    assert found[-1] == pytest.approx(min_lr, abs=1e-12)


def coefficients(step, *, epochs, steps_per_epoch=1, **options):
    options = TrainOptions(epochs=epochs, **options)
    return StepCoefficients.at(step, options=options, steps_per_epoch=steps_per_epoch, num_data=10)


def test_the_weights_of_the_kl_rise_linearly_from_zero_and_stay():
    options = {"epochs": 7, "kl_anneal_epochs": 4, "kl_weight": 2.0, "local_kl_weight": 0.5}
    found = [coefficients(step, **options) for step in range(7)]
    assert [each.kl for each in found] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert [each.local_kl for each in found] == [0.0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert [coefficients(step, epochs=3, kl_weight="num_data").kl for step in range(3)] == [10.0] * 3


@pytest.mark.parametrize(
    ("start", "end", "epochs", "expected"),
    [
        (0.0, 1.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.5, 1.0, 3, [0.5, 0.75, 1.0]),
        (2.0, 1.0, 2, [2.0, 1.0]),
        (0.7, 0.7, 4, [0.7] * 4),
        (0.25, 1.0, 1, [0.25]),
    ],
)
def test_alpha_is_a_line_from_the_first_step_to_the_last(start, end, epochs, expected):
    options = {"epochs": epochs, "alpha_start": start, "alpha_end": end}
    assert [coefficients(step, **options).alpha for step in range(epochs)] == expected


OUT_OF_BOUNDS = [
    {"epochs": 0},
    {"lr": 0.0},
    {"lr": -1.0},
    {"lr": math.nan},
    {"min_lr": -1e-6},
    {"min_lr": 1.0},
    {"warmup_epochs": -1},
    {"warmup_epochs": 10},
    {"weight_decay": -0.1},
    {"clip_norm": 0.0},
    {"clip_norm": -1.0},
    {"elbo": "renyi"},
    {"samples_per": "token"},
    {"num_particles": 0},
    {"kl_weight": -1.0},
    {"local_kl_weight": -0.5},
    {"kl_anneal_epochs": -1},
    {"schedule": "step"},
    {"alpha_start": -0.1},
    {"alpha_start": math.nan},
    {"alpha_end": -1.0},
    {"alpha_end": math.inf},
    {"monitor": "acurracy"},
    {"patience": 0},
    {"num_samples": 0},
    {"precision": "16"},
    {"log_every": 0},
    {"checkpoint_every": 0},
]


@pytest.mark.parametrize("options", OUT_OF_BOUNDS)
def test_an_option_out_of_bounds_is_named_with_its_value(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match="out of bounds") as error:
        TrainOptions(**options)
    assert f"{name}={value!r}" in str(error.value)


def test_all_options_out_of_bounds_are_named_at_once():
    with pytest.raises(ValueError, match=r"epochs=0, .*num_particles=0, "):
        TrainOptions(epochs=0, num_particles=0)


def test_defaults_and_every_metric_as_monitor_are_in_bounds():
    TrainOptions()
    TrainOptions(alpha_start=0.0, alpha_end=2.0, schedule="linear")
    TrainOptions(clip_norm=1.0, patience=1, warmup_epochs=0.5, kl_anneal_epochs=2.5, min_lr=0.0, seed=None)
    for monitor in ("log_prob", *(score.__name__ for score in OF_CLASSES)):
        TrainOptions(monitor=monitor)


def test_a_run_goes_on_with_more_epochs_and_patience_alone():
    saved = TrainOptions(epochs=5, patience=3, lr_scale={"a": 0.5})
    for free in ({"epochs": 6}, {"patience": 4}, {"patience": None}, {"epochs": 7, "patience": 8}):
        assert dataclasses.replace(saved, **free).continues(saved)
    for other in ({"lr": 0.5}, {"seed": None}, {"epochs": 6, "schedule": "linear"}, {"epochs": 4}, {"patience": 2}):
        assert not dataclasses.replace(saved, **other).continues(saved)
