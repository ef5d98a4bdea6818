import pytest
import torch

from probattn.models.dropout import Dropout


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.99, 1 - 1e-9])
def test_the_share_of_zeros_is_the_rate_and_the_mean_is_preserved(rate):
    y = Dropout(rate)(torch.ones(1001, 403))
    share = (y == 0).double().mean().item()
    deviation = (max(rate * (1 - rate), 2**-16) / y.numel()) ** 0.5
    assert abs(share - min(rate, 1 - 2**-16)) < 2**-17 + 5 * deviation
    scale = 2**16 / max(1, round(2**16 * (1 - rate)))
    assert y.unique().tolist() == ([] if rate == 0 else [0.0]) + [torch.tensor(scale).item()]


def test_elements_are_dropped_independently_of_their_neighbours():
    zero = (Dropout(0.5)(torch.ones(400_000)) == 0).double() - 0.5
    for lag in (1, 2, 3, 4, 8):
        correlation = 4 * (zero[lag:] * zero[:-lag]).mean().item()
        assert abs(correlation) < 5 / 400_000**0.5


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 7), (0, 4)])
def test_the_gradient_is_the_mask_with_its_scale_and_evaluation_the_identity(shape):
    x = torch.full(shape, 2.0, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.25)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach() / 2)
    assert Dropout(0.25).eval()(x) is x
