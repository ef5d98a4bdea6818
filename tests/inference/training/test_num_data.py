"""num_data is compared with the number of examples that an epoch has."""

import pytest
import torch
from small_fit import build, short
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from probattn.inference import fit
from probattn.inference.training.num_data import training_sizes

DATA = TensorDataset(torch.randn(1000, 4, 3), torch.arange(1000) % 3)
SUBSET = SubsetRandomSampler(range(0, 1000, 10))


class Stream(IterableDataset):
    def __len__(self):
        return 30

    def __iter__(self):
        yield from (DATA[index] for index in range(30))


class Buckets:
    """A batch sampler of a class of its own, of batches of different sizes, in random order."""

    def __init__(self, *sizes, repeats=1):
        self.sizes, self.repeats, self.generator = sizes, repeats, torch.Generator().manual_seed(0)

    def __len__(self):
        return len(self.sizes) * self.repeats

    def __iter__(self):
        batches = torch.arange(sum(self.sizes)).split(self.sizes)
        for number in torch.randperm(len(self), generator=self.generator).tolist():
            yield batches[number % len(batches)].tolist()


def sampled(sampler, **options):
    return DataLoader(DATA, batch_size=30, sampler=sampler, **options)


@pytest.mark.parametrize(
    ("loader", "sizes"),
    [
        (DataLoader(DATA, batch_size=30), [1000]),
        (DataLoader(DATA, batch_size=30, shuffle=True), [1000]),
        (DataLoader(DATA, batch_size=30, shuffle=True, drop_last=True), [1000, 990]),
        (DataLoader(Subset(DATA, range(70)), batch_size=30), [70]),
        (sampled(SUBSET), [100]),
        (sampled(SUBSET, drop_last=True), [100, 90]),
        (sampled(RandomSampler(DATA, num_samples=300)), [1000, 300]),
        (sampled(RandomSampler(DATA, replacement=True, num_samples=5000)), [1000, 5000]),
        (sampled(WeightedRandomSampler([1.0, 0.0] * 500, 200)), [500, 200]),
        (sampled([*range(1000)] * 2), [1000, 2000]),
        (sampled(DistributedSampler(DATA, 4, 0)), [250]),
        (DataLoader(DATA, batch_sampler=BatchSampler(SUBSET, 30, drop_last=False)), [100]),
        (DataLoader(DATA, sampler=BatchSampler(SUBSET, 30, drop_last=False), batch_size=None), [100]),
        (DataLoader(DATA, batch_sampler=Buckets(20, 30, 10)), [60]),
        (DataLoader(DATA, batch_sampler=Buckets(20, 30, repeats=2)), [50, 100]),
        (DataLoader([(torch.zeros(5, 1), torch.zeros(5))] * 4, batch_size=None), []),
        (DataLoader(Stream(), batch_size=10), [30]),
        ([(torch.zeros(5, 1), torch.zeros(5)), (torch.zeros(3, 1), torch.zeros(3))], []),
    ],
)
def test_the_size_is_that_of_an_epoch(loader, sizes):
    assert training_sizes(loader) == sizes


def test_a_subset_of_the_data_is_trained_with_its_own_size():
    model, guide, _, _ = build(num_data=100)
    fit(model, guide, sampled(SUBSET), **short(epochs=1))
    model, guide, _, _ = build(num_data=1000)
    with pytest.raises(ValueError, match=r"num_data=1000, but the training loader has 100 examples.*0\.1 times"):
        fit(model, guide, sampled(SUBSET), **short(epochs=1))


def test_counting_the_examples_of_a_batch_sampler_leaves_its_order():
    sampler = Buckets(20, 30, 10)
    expected = list(Buckets(20, 30, 10))
    training_sizes(DataLoader(DATA, batch_sampler=sampler))
    assert list(sampler) == expected


def test_a_loader_may_tell_the_size_itself():
    loader = sampled(SUBSET)
    loader.num_data = 1000
    model, guide, _, _ = build(num_data=1000)
    fit(model, guide, loader, **short(epochs=1))
