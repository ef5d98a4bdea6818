"""The context manager for fixed parameters."""

import pytest
from torch import nn

from probattn.inference.posterior.frozen import frozen


def test_frozen_switches_dropout_and_gradients_off_and_on_again_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5).eval(), nn.Dropout(0.5))
    model[0].bias.requires_grad_(False)
    seen = []

    def fails():
        seen.append(any(module.training for module in model.modules()))
        seen.append(any(parameter.requires_grad for parameter in model.parameters()))
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), frozen(model):
        fails()
    assert seen == [False, False]
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False]
