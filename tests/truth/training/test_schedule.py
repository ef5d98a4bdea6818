"""Learning rates, KL weights and the regulariser's weight by formula at every step."""

import pytest
import torch
from small_fit import STEPS, Regularised, build, short
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from probattn import SoftmaxAttention
from probattn.inference import TrainOptions, fit
from probattn.inference.training.optimizers import scheduled_lr
from probattn.inference.training.step import StepCoefficients


def torchs(schedule, *, warmup, min_lr, steps):
    """Learning rates by PyTorch's schedulers."""
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)
    rest = steps - warmup
    if schedule == "cosine":
        scheduler = CosineAnnealingLR(optimizer, T_max=rest, eta_min=min_lr)
    else:
        scheduler = LinearLR(optimizer, start_factor=1.0, end_factor=min_lr / 0.1, total_iters=rest)
    if warmup:
        rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        scheduler = SequentialLR(optimizer, [rise, scheduler], milestones=[warmup])
    rates = []
    for _ in range(steps + 1):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize(("warmup", "min_lr"), [(0, 0.02), (1, 0.0), (4, 0.02)])
def test_the_learning_rate_is_that_of_pytorchs_schedulers(schedule, warmup, min_lr):
    options = TrainOptions(
        schedule=schedule, epochs=20, warmup_epochs=warmup, lr=0.1, min_lr=min_lr
    )
    rates = [scheduled_lr(step, options=options, steps_per_epoch=1) for step in range(21)]
    assert rates == pytest.approx(
        torchs(schedule, warmup=warmup, min_lr=min_lr, steps=20), rel=1e-9, abs=1e-12
    )


def test_a_run_follows_the_schedule():
    model, guide, train, _ = build()
    arguments = short(schedule="linear", warmup_epochs=1, min_lr=1e-3)
    history = fit(model, guide, train, **arguments)
    rates = [
        scheduled_lr(step, options=arguments["options"], steps_per_epoch=STEPS)
        for step in range(4 * STEPS)
    ]
    assert [record["lr"] for record in history.steps] == pytest.approx(rates, rel=1e-12)


def coefficients(epochs, **options):
    options = TrainOptions(epochs=epochs, **options)
    return [
        StepCoefficients.at(step, options=options, steps_per_epoch=1, num_data=10)
        for step in range(epochs)
    ]


def test_the_weights_of_the_kl_rise_linearly_from_zero_and_stay():
    weights = coefficients(7, kl_anneal_epochs=4, kl_weight=2.0, local_kl_weight=0.5)
    assert [each.kl for each in weights] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert [each.local_kl for each in weights] == [0.0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert [each.kl for each in coefficients(2, kl_weight="num_data")] == [10.0, 10.0]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (2.0, 1.0, [2.0, 1.0]),
        (0.7, 0.7, [0.7] * 4),
        (0.25, 1.0, [0.25]),
    ],
)
def test_alpha_is_a_line_from_the_first_step_to_the_last(start, end, expected):
    weights = coefficients(len(expected), alpha_start=start, alpha_end=end)
    assert [each.alpha for each in weights] == expected


def test_alpha_scales_the_regulariser_alone():
    """The regulariser is 3 nats an example; the rest of the loss is that of the network without
    one."""
    model, guide, train, _ = build(attention=Regularised)
    history = fit(model, guide, train, **short(epochs=2, alpha_start=0.5, alpha_end=1.0))
    model, guide, train, _ = build(attention=SoftmaxAttention)
    plain = fit(model, guide, train, **short(epochs=2))
    steps = 2 * STEPS
    for step, (record, other) in enumerate(zip(history.steps, plain.steps, strict=True)):
        penalty = 3 * (0.5 + 0.5 * step / (steps - 1))
        assert record["penalty/network.attention.fit"] == pytest.approx(penalty, rel=1e-6)
        assert record["loss"] - penalty == pytest.approx(other["loss"], rel=1e-5)
