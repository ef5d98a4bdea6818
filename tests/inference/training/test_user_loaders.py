"""Runs with loaders of the user resume exactly, wherever torch, NumPy and Python seed them."""

import random

import numpy as np
import pytest
import torch
from small_fit import assert_same, build, data, short, untimed, weights
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from probattn.inference import fit
from probattn.inference.training import trainer


class Augmented(Dataset):
    """Examples with noise that a function returns, which may have a generator beside it."""

    def __init__(self, noise, generator=None):
        self.noise, self.generator, self.examples = noise, generator, data()

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        x, y = self.examples[index]
        return x + 0.3 * float(self.noise()), y


class Order:
    """Sampler in the order that a function of the length returns, by a generator of its own."""

    def __init__(self, order, generator=None):
        self.order, self.generator = order, generator

    def __len__(self):
        return 8

    def __iter__(self):
        return iter([int(index) for index in self.order(8)])


class Batches(Order):
    def __len__(self):
        return 3

    def __iter__(self):
        return BatchSampler(super().__iter__(), 3, drop_last=False).__iter__()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def loader(dataset=None, **options):
    return DataLoader(data() if dataset is None else dataset, **{"batch_size": 3} | options)


def global_numpy(seed):
    np.random.seed(seed)
    return loader(Augmented(lambda: np.random.normal()))


def global_python(seed):
    random.seed(seed)
    return loader(Augmented(lambda: random.gauss(0, 1)))


def of_numpy(kind, source):
    return kind(source.permutation, source)


def of_python(seed):
    source = random.Random(seed)
    return Order(lambda size: source.sample(range(size), size), source)


def of_data_set(seed):
    source = np.random.Generator(np.random.SFC64(seed))
    return Augmented(source.normal, source)


LOADERS = {
    "sampler": lambda seed: loader(sampler=RandomSampler(data(), generator=seeded(seed))),
    "batch sampler": lambda seed: loader(
        batch_size=1, batch_sampler=BatchSampler(RandomSampler(data(), generator=seeded(seed)), 3, False)
    ),
    "NumPy in a sampler": lambda seed: loader(sampler=of_numpy(Order, np.random.default_rng(seed))),
    "own batch sampler": lambda seed: loader(
        batch_size=1, batch_sampler=of_numpy(Batches, np.random.RandomState(seed))
    ),
    "random.Random in a sampler": lambda seed: loader(sampler=of_python(seed)),
    "NumPy": global_numpy,
    "random": global_python,
    "generator of a data set": lambda seed: loader(of_data_set(seed), generator=seeded(seed + 1), shuffle=True),
    "two workers": lambda seed: loader(
        Augmented(np.random.normal), num_workers=2, shuffle=True, generator=seeded(seed)
    ),
    "two workers, global": lambda seed: loader(Augmented(lambda: torch.randn(())), num_workers=2, shuffle=True),
}


def killed_in_second_epoch(monkeypatch):
    """Kill the run in its second epoch, at the second batch that the trainer gets."""
    epochs, whole = [], trainer.rank_batches

    def batches(train):
        epochs.append(train)
        for number, batch in enumerate(whole(train)):
            if (len(epochs), number) == (2, 1):
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(trainer, "rank_batches", batches)


def run(train, out, *, seed=0, **options):
    model, guide, _, valid = build(seed=seed)
    history = fit(model, guide, train, valid, out=out, **short(**({"epochs": 3} | options)))
    return weights(model, guide), untimed(history.steps + history.epochs)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_killed_run_resumes_exactly(tmp_path, monkeypatch, name):
    expected, records = run(LOADERS[name](1), tmp_path / "whole")
    with monkeypatch.context() as patch:
        killed_in_second_epoch(patch)
        with pytest.raises(KeyboardInterrupt):
            run(LOADERS[name](1), tmp_path / "killed")
    resumed, again = run(LOADERS[name](1), tmp_path / "killed", resume=True, seed=5)
    assert again == records
    assert_same(resumed, expected)
