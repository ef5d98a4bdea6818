"""num_data is compared with the number of examples that an epoch has."""

import pytest
import torch
from small_fit import build, short
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from probattn.inference import fit
from probattn.inference.objective.num_data import check_num_data

DATA = TensorDataset(torch.randn(1000, 4, 3), torch.arange(1000) % 3)
SUBSET = SubsetRandomSampler(range(0, 1000, 10))


def sampled(sampler, **options):
    return DataLoader(DATA, batch_size=30, sampler=sampler, **options)


@pytest.mark.parametrize(
    ("loader", "sizes"),
    [
        (DataLoader(DATA, batch_size=30, shuffle=True, drop_last=True), [1000]),
        (sampled(SUBSET, drop_last=True), [100, 1000]),
        (sampled(RandomSampler(DATA, replacement=True, num_samples=5000)), [1000, 5000]),
        (sampled(DistributedSampler(DATA, 4, 0)), [250, 1000]),
        (DataLoader(DATA, batch_sampler=BatchSampler(SUBSET, 30, drop_last=False)), [100, 1000]),
        ([(torch.zeros(5, 1), torch.zeros(5)), (torch.zeros(3, 1), torch.zeros(3))], []),
    ],
)
def test_the_size_is_that_of_an_epoch(loader, sizes):
    model = nn.Module()
    for model.num_data in sizes:
        check_num_data(model, loader)
    model.num_data = 17
    if sizes:
        with pytest.raises(
            ValueError, match=f"num_data=17, and the training loader {min(sizes)} examples"
        ):
            check_num_data(model, loader)
    else:
        check_num_data(model, loader)


def test_fit_refuses_another_size_than_the_loaders_unless_the_loader_tells_it():
    model, guide, *_ = build(num_data=200)
    loader = sampled(SUBSET)
    with pytest.raises(ValueError, match=r"num_data=200.* 0\.5 times"):
        fit(model, guide, loader, **short(epochs=1))
    loader.num_data = 200
    fit(model, guide, loader, **short(epochs=1))
