"""A model whose posterior is conjugate, with data that it draws."""

import pytest
import torch
from idioms import N, Regression


@pytest.fixture
def problem():
    model, x = Regression(), torch.randn(N, 3, 4)
    return model, x, model(x).detach()
