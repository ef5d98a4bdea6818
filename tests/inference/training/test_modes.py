"""Submodules in evaluation mode stay there, in training and afterwards; a model that is there as a whole is trained."""

import pytest
import torch
from small_fit import Network, build, short
from torch import nn

from probattn import guides
from probattn.inference import fit
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical


class WithNorm(Network):
    def __init__(self):
        super().__init__(dropout=0.5)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        if self.training:
            self.modes = [module.training for module in self.modules()]
        return super().forward(self.norm(x.mT).mT)


def trained(change):
    torch.manual_seed(0)
    network = WithNorm()
    change(network)
    model = Supervised(network, Categorical(), num_data=8)
    before, statistics = [module.training for module in network.modules()], network.norm.running_mean.clone()
    _, _, train, valid = build()
    fit(model, guides.for_model(model), train, valid, **short(epochs=2))
    return network, before, not torch.equal(network.norm.running_mean, statistics)


@pytest.mark.parametrize("number", range(2))
def test_submodules_in_evaluation_mode_stay_there(number):
    network, before, moved = trained(lambda network: (network.norm, network.dropout)[number].eval())
    assert before.count(False) == 1
    assert network.modes == before
    assert [module.training for module in network.modules()] == before
    assert moved == (number == 1)


def test_a_model_in_evaluation_mode_as_a_whole_is_put_into_training_mode():
    network, before, moved = trained(nn.Module.eval)
    assert not any(before)
    assert moved
    assert all(module.training for module in network.modules())
