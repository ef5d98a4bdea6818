"""fit: what it learns, reproducibility, its first steps, and the arguments that it refuses."""

import pytest
import torch
from elbos import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from small_fit import assert_same, build, data, short, untimed, weights
from torch.utils.data import DataLoader

from probattn import draws
from probattn.inference import TrainOptions, fit


def test_loss_falls_and_accuracy_rises():
    torch.manual_seed(0)
    model, guide, _, _ = build(num_data=30)
    train = DataLoader(data(30), batch_size=10, shuffle=True)
    history = fit(model, guide, train, train, options=TrainOptions(epochs=25, lr=0.05), progress=False)
    losses = [epoch["train_loss"] for epoch in history.epochs]
    assert losses[-1] < 0.8 * losses[0]
    nlls = [epoch["valid/nll"] for epoch in history.epochs]
    assert nlls[0] > history.best_value == min(nlls)
    assert history.epochs[history.best_epoch - 1]["valid/nll"] == history.best_value
    assert history.epochs[0]["valid/accuracy"] < history.epochs[history.best_epoch - 1]["valid/accuracy"] > 0.95


@pytest.mark.parametrize("guide", ["full", AutoNormal])
def test_the_same_seed_gives_the_same_weights_bit_by_bit(guide):
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(int(torch.randint(1000, ())))
        model, q, train, valid = build(guide=guide, dropout=0.3)
        torch.rand(seed + len(results))
        history = fit(model, q, train, valid, **short(epochs=2, seed=seed))
        results.append((weights(model, q), untimed(history.steps)))
    assert_same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert results[0][1] != results[2][1]


def test_without_a_seed_the_generator_is_left_as_it_is():
    losses = []
    for seed in (4, 4, 5):
        model, q, train, _ = build()
        torch.manual_seed(seed)
        losses.append([step["loss"] for step in fit(model, q, train, **short(epochs=1, seed=None)).steps])
    assert losses[0] == losses[1] != losses[2]


def test_first_steps_are_adams_on_the_elbo_per_example():
    """Two steps of a hand-written loop from the same random state: no hidden factor, no stale gradient."""
    options = short(epochs=1, lr=0.05, min_lr=0.05, clip_norm=0.3)
    batches = [(x.double(), y) for x, y in build()[2]]
    model, guide, _, _ = build()
    model, guide = model.double(), guide.double()
    fit(model, guide, batches, **options)
    actual = weights(model, guide)

    model, guide, _, _ = build()
    model, guide = model.double(), guide.double()
    parameters = [*model.parameters(), *guide.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    torch.manual_seed(0)
    for x, y in batches:
        optimizer.zero_grad()
        with draws("example"):
            loss = TraceMeanField_ELBO()(model, guide)(x, y)
        (loss / 8).backward()
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        for p in parameters:
            p.grad.mul_(min(1.0, 0.3 / norm.item()))
        optimizer.step()
    by_hand = weights(model, guide)
    for name, value in actual.items():
        torch.testing.assert_close(value, by_hand[name], rtol=1e-6, atol=1e-8)


def test_unknown_options_are_errors():
    model, guide, train, _ = build()
    with pytest.raises(TypeError, match="learning_rate"):
        fit(model, guide, train, options=TrainOptions(learning_rate=0.1))
    with pytest.raises(TypeError, match="epochs"):
        fit(model, guide, train, epochs=3)


def test_num_data_other_than_the_loaders_is_refused():
    model, guide, train, _ = build(num_data=3)
    with pytest.raises(ValueError, match=r"num_data=3, and the training loader 8 examples.*2.67 times"):
        fit(model, guide, train, **short())


def test_a_guide_of_another_model_is_refused():
    model, _, train, _ = build()
    _, other, _, _ = build(1)
    with pytest.raises(ValueError, match="another model"):
        fit(model, other, train, **short())
