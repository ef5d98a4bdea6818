"""Private parts of PyTorch behave as `probattn.torch_compat` documents; a new version that changes them fails here."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from probattn import torch_compat


def test_every_dropout_and_no_other_module_is_dropout():
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    assert all(torch_compat.is_dropout(kind()) for kind in kinds)
    assert not torch_compat.is_dropout(nn.Identity())


def test_every_batch_norm_and_no_other_norm_is_batch_norm():
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    assert all(torch_compat.is_batch_norm(kind(2)) for kind in kinds)
    assert not any(map(torch_compat.is_batch_norm, (nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm2d(2))))


def test_own_modules_are_the_children_and_can_be_replaced_in_place():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    assert list(torch_compat.own_modules(network)) == ["0", "1"]
    torch_compat.own_modules(network)["0"] = nn.Identity()
    assert isinstance(network[0], nn.Identity)
    assert [name for name, _ in network.named_children()] == ["0", "1"]


def test_own_parameters_are_those_of_the_module_itself():
    linear = nn.Linear(2, 3, bias=False)
    assert torch_compat.own_parameters(linear) == {"weight": linear.weight, "bias": None}
    assert torch_compat.own_parameters(nn.Sequential(linear)) == {}


def test_fields_and_batch_shape_of_a_distribution():
    normal = Normal(torch.zeros(3), torch.ones(3))
    fields = torch_compat.distribution_fields(normal)
    assert fields["loc"] is normal.loc
    assert not any(value == normal.batch_shape for value in fields.values() if isinstance(value, torch.Size))
    normal.loc, normal.scale = torch.zeros(2, 3), torch.ones(2, 3)
    torch_compat.set_batch_shape(normal, torch.Size((2, 3)))
    assert normal.batch_shape == normal.sample().shape == (2, 3)


@pytest.mark.parametrize("given", ["logits", "probs"])
def test_a_categorical_of_normalised_logits_is_pytorchs(given):
    class Normalised(Categorical):
        def __init__(self, logits, validate_args=None):
            torch_compat.set_normalised_logits(self, logits, validate_args)

        def expand(self, batch_shape, _instance=None):
            return super().expand(batch_shape, self.__new__(type(self)))

    logits = torch.randn(3, 2, 4, dtype=torch.float64).log_softmax(-1)
    found, y = Normalised(logits), torch.tensor([[0, 3], [1, 2], [2, 2]])
    reference = Categorical(**{given: logits.exp() if given == "probs" else logits})
    for each, expected in ((found, reference), (found.expand((5, 3, 2)), reference.expand((5, 3, 2)))):
        assert (each.batch_shape, each.event_shape, each.support.upper_bound) == (expected.batch_shape, (), 3)
        assert each.param_shape == expected.param_shape
        torch.testing.assert_close(each.log_prob(y), expected.log_prob(y))
        torch.testing.assert_close(each.probs, expected.probs)
        torch.testing.assert_close(each.entropy(), expected.entropy())
        assert each.sample((7,)).shape == expected.sample((7,)).shape
    with pytest.raises(ValueError, match="invalid values"):
        Normalised(torch.tensor([torch.nan, 0.0]), validate_args=True)


def test_attention_on_a_cpu_is_one_operator_forward_and_one_backward():
    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.overloadpacket)
            return function(*args, **(kwargs or {}))

    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    with Record():
        nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
    assert {torch_compat.CPU_ATTENTION, torch_compat.CPU_ATTENTION_BACKWARD} <= set(seen)
