"""Training steps by hand, in float64: Adam divides gradients by their size, so equality is
strict."""

import pytest
import torch
from elbos import TraceMeanField_ELBO
from pyro.distributions.kl import kl_divergence
from small_fit import build, data, short, weights
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.testing import assert_close
from torch.utils.data import DataLoader

from probattn import draws
from probattn.inference import fit


def doubles(batch_size=3, **options):
    model, guide, *_ = build(**options)
    return (
        model.double(),
        guide.double(),
        [(x.double(), y) for x, y in DataLoader(data(), batch_size=batch_size)],
    )


def by_hand(optimizer, rates, *, clip):
    """Weights after steps on −ELBO/N from the random state that a run begins with: no hidden factor
    or gradient."""
    model, guide, batches = doubles()
    parameters = [*model.parameters(), *guide.parameters()]
    optimizer = optimizer(parameters, lr=1.0)
    torch.manual_seed(0)
    for (x, y), rate in zip(batches, rates, strict=True):
        optimizer.zero_grad()
        with draws("example"):
            (TraceMeanField_ELBO()(model, guide)(x, y) / 8).backward()
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        for p in parameters:
            p.grad.mul_(min(1.0, clip / norm.item()))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return weights(model, guide)


@pytest.mark.parametrize("own", [False, True])
def test_a_run_takes_the_steps_of_its_optimiser_and_scheduler_on_the_elbo_per_example(own):
    model, guide, batches = doubles()
    factories = {
        "optimizer": torch.optim.SGD,
        "scheduler": lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
    }
    given = factories if own else {}
    history = fit(
        model, guide, batches, **given, **short(epochs=1, lr=0.05, min_lr=0.05, clip_norm=0.3)
    )
    rates = [0.05, 0.025, 0.0125] if own else [0.05] * 3
    assert [step["lr"] for step in history.steps] == pytest.approx(rates)
    expected = by_hand(torch.optim.SGD if own else torch.optim.Adam, rates, clip=0.3)
    for name, value in weights(model, guide).items():
        assert_close(value, expected[name], rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("decoupled", [True, False])
def test_decoupled_decay_shrinks_weights_by_the_rate_alone_and_the_penalty_goes_through_adam(
    decoupled,
):
    """In the first step Adam moves each parameter by the rate towards the sign of its gradient."""
    model, guide, batches = doubles(8)
    before = model.network.head.weight.detach().clone()
    biases = model.network.head.bias.detach().clone()
    options = {
        "epochs": 1,
        "lr": 1e-3,
        "min_lr": 1e-3,
        "weight_decay": 100.0,
        "decoupled_weight_decay": decoupled,
    }
    fit(model, guide, batches, **short(**options))
    change = model.network.head.weight.detach() - before
    if decoupled:
        step = (change + 1e-3 * 100 * before).abs()
        assert_close(step, torch.full_like(step, 1e-3), rtol=0.02, atol=1e-6)
    else:
        assert_close(change, -1e-3 * before.sign(), rtol=0.02, atol=1e-6)
    assert (model.network.head.bias.detach() - biases).abs().max() == pytest.approx(1e-3, rel=0.02)


def test_each_parameter_moves_by_its_own_learning_rate():
    """Adam's first step has the length of the learning rate; the last pattern that matches
    counts."""
    model, guide, batches = doubles(8)
    before = weights(model, guide)
    scale = {"network.attention.*": 0.1, "*.bias": 5.0, "network.head.bias|absent": 10.0}
    fit(
        model,
        guide,
        batches,
        **short(epochs=1, lr=1e-3, min_lr=1e-3, lr_scale=scale, guide_lr=0.02),
    )
    for name, value in weights(model, guide).items():
        factor = 20.0 if name.startswith("1.") else 0.1 if ".attention." in name else 1.0
        factor = 10.0 if "head.bias" in name else 5.0 if name.endswith(".bias") else factor
        assert (value - before[name]).abs().max() == pytest.approx(1e-3 * factor, rel=1e-2), name


class SameSample(nn.Module):
    """Guide that draws the same posterior sample at each call."""

    def __init__(self, guide):
        super().__init__()
        self.guide = guide

    def forward(self, *args):
        torch.manual_seed(5)
        return self.guide(*args)


def trained(batch_size, **options):
    model, guide, batches = doubles(batch_size)
    guide = SameSample(guide)
    few = {"epochs": 3, "samples_per": "batch", "weight_decay": 0.1, "vectorize": True}
    return fit(model, guide, batches, **short(**few | options)), weights(model, guide)


@pytest.mark.parametrize(
    ("size", "number", "options"),
    [
        (4, 2, {"elbo": "trace"}),
        (3, 3, {"clip_norm": 0.05, "kl_anneal_epochs": 1, "warmup_epochs": 1}),
        (1, 8, {"guide_optimizer": "ngd", "kl_weight": 0.5}),
    ],
)
def test_accumulated_batches_are_one_batch(size, number, options):
    """Also batches of 3, 3 and 2 examples: the likelihood's mean, and the KL once."""
    expected, whole = trained(8, **options)
    history, parts = trained(size, accumulate_grad_batches=number, **options)
    for name, value in whole.items():
        assert_close(parts[name], value, rtol=1e-7, atol=1e-9, msg=name)
    for one, other in zip(history.steps, expected.steps, strict=True):
        assert {name: v for name, v in one.items() if name != "kind"} == pytest.approx(
            {name: v for name, v in other.items() if name != "kind"}
        )


def test_the_last_step_of_an_epoch_takes_the_batches_that_are_left():
    """Batches of 3, 3 and 2 examples, two a step: steps of 6 and 2 examples."""
    history, _ = trained(3, accumulate_grad_batches=2)
    assert [step["step"] for step in history.steps] == [1, 2, 3, 4, 5, 6]
    total = (6 * history.steps[0]["loss"] + 2 * history.steps[1]["loss"]) / 8
    assert history.epochs[0]["train_loss"] == pytest.approx(total)


@pytest.mark.parametrize(
    ("elbo", "weight"), [("mean_field", "num_data"), ("mean_field", 1.0), ("trace", 1.0)]
)
def test_the_kl_of_the_first_step_is_the_closed_form_over_the_data_set(elbo, weight):
    """Times num_data with that weight, so that the whole KL stands beside the mean log-likelihood;
    or sampled."""
    model, guide, batches = doubles()
    prior = model.network.attention.sites()["u"]
    whole = kl_divergence(guide.network.attention.u(prior), prior).item()
    step = fit(model, guide, batches, **short(epochs=1, kl_weight=weight, elbo=elbo)).steps[0]
    exact = whole if weight == "num_data" else whole / 8
    assert (step["kl/network.attention.u"] == pytest.approx(exact, rel=1e-9)) == (
        elbo == "mean_field"
    )
