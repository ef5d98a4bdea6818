"""Optimisers and schedulers of the user's choice, and the default ones, by hand."""

import pytest
import torch
from elbos import TraceMeanField_ELBO
from small_fit import assert_same, build, data, kill, short, untimed, weights
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader

from probattn.inference import CheckpointError, TrainOptions, fit
from probattn.inference.training.optimizers import Optimizers


def sgd(groups):
    return torch.optim.SGD(groups, momentum=0.9)


def made(**options):
    model, guide, *_ = build()
    given = {name: options.pop(name) for name in ("optimizer", "scheduler") if name in options}
    options = TrainOptions(**options)
    return Optimizers(model, guide, options=options, num_data=8, steps_per_epoch=3, **given)


@pytest.mark.parametrize(("decoupled", "kind"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_the_default_is_adamw_with_decay_on_weights_alone(decoupled, kind):
    optimizer = made(weight_decay=0.1, decoupled_weight_decay=decoupled, lr=0.5).optimizer
    assert type(optimizer) is kind
    assert optimizer.defaults["fused"]
    assert [(group["weight_decay"], group["lr"]) for group in optimizer.param_groups] == [(0.1, 0.5), (0.0, 0.5)]


def test_decoupled_decay_shrinks_weights_by_the_rate_alone_and_the_penalty_goes_through_adam():
    """Both in the first step, in which Adam moves each parameter by the rate towards the sign of its gradient."""
    moved = {}
    for decoupled in (True, False):
        model, guide, *_ = build()
        before = model.network.head.weight.detach().clone()
        batches = [next(iter(DataLoader(data(), batch_size=8)))]
        options = {"epochs": 1, "lr": 1e-3, "weight_decay": 100.0, "decoupled_weight_decay": decoupled}
        fit(model, guide, batches, **short(**options, min_lr=1e-3))
        moved[decoupled] = (model.network.head.weight.detach() - before, before)
    change, before = moved[True]
    step = change + 1e-3 * 100 * before
    torch.testing.assert_close(step.abs(), torch.full_like(step, 1e-3), rtol=0.02, atol=1e-6)
    change, before = moved[False]
    torch.testing.assert_close(change, -1e-3 * before.sign(), rtol=0.02, atol=1e-6)


def test_a_factory_gets_groups_with_their_rates_and_decays():
    seen = []

    def factory(groups):
        seen.extend(groups)
        return torch.optim.SGD(groups)

    made(optimizer=factory, lr=0.5, guide_lr=0.1, weight_decay=0.2, lr_scale={"network.head.*": 0.1})
    rates = [(round(group["lr"], 10), group["weight_decay"]) for group in seen]
    assert rates == [(0.5, 0.2), (0.05, 0.2), (0.5, 0.0), (0.05, 0.0), (0.1, 0.0)]


def test_fit_takes_the_steps_of_an_optimiser_and_a_scheduler_by_hand():
    """Plain gradient descent of one batch, whose rate halves at each step."""
    batch = next(iter(DataLoader(data(), batch_size=8)))
    model, guide, *_ = build(guide="delta")
    history = fit(
        model,
        guide,
        [batch],
        optimizer=torch.optim.SGD,
        scheduler=lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
        **short(epochs=3, lr=0.1),
    )
    assert [step["lr"] for step in history.steps] == [0.1, 0.05, 0.025]
    other, other_guide, *_ = build(guide="delta")
    elbo = TraceMeanField_ELBO()(other, other_guide)
    for lr in (0.1, 0.05, 0.025):
        gradients = torch.autograd.grad(elbo(*batch) / 8, list(elbo.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(elbo.parameters(), gradients, strict=True):
                parameter -= lr * gradient
    found, expected = weights(model, guide), weights(other, other_guide)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("natural", ["adam", "ngd"])
def test_a_run_with_both_resumes_exactly(tmp_path, natural):
    def one_cycle(optimizer):
        return OneCycleLR(optimizer, 0.05, total_steps=13, cycle_momentum=natural == "adam")

    def run(folder, train, model, guide):
        few = short(resume=True, epochs=4, guide_optimizer=natural)
        return fit(model, guide, train, out=folder, optimizer=sgd, scheduler=one_cycle, **few)

    model, guide, train, _ = build()
    whole = run(tmp_path / "whole", train, model, guide)
    expected = weights(model, guide)
    model, guide, train, _ = build()
    train.at, train.callback = (3, 1), kill
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", train, model, guide)
    model, guide, train, _ = build(seed=0)
    resumed = run(tmp_path / "killed", train, model, guide)
    assert_same(weights(model, guide), expected)
    assert untimed(resumed.steps) == untimed(whole.steps)


def test_resuming_with_another_optimiser_or_scheduler_is_refused(tmp_path):
    model, guide, train, _ = build()
    fit(model, guide, train, out=tmp_path, optimizer=sgd, **short(epochs=1))
    for given, name in (
        ({}, "AdamW"),
        ({"optimizer": sgd, "scheduler": lambda each: ExponentialLR(each, 0.9)}, "ExponentialLR"),
    ):
        model, guide, train, _ = build()
        with pytest.raises(CheckpointError, match=name):
            fit(model, guide, train, out=tmp_path, **given, **short(resume=True, epochs=1))


def test_entries_that_share_memory_are_trained_apart():
    """Adam in PyTorch's fused form would give them one value."""
    losses = []
    for expanded in (True, False):
        model, guide, train, _ = build()
        bias = torch.zeros(1).expand(3)
        model.network.head.bias = torch.nn.Parameter(bias if expanded else bias.contiguous())
        model.network.register_buffer("spare", bias if expanded else bias.contiguous())
        losses.append([step["loss"] for step in fit(model, guide, train, **short()).steps])
        assert len(set(model.network.head.bias.tolist())) == 3
    assert losses[0] == losses[1]
