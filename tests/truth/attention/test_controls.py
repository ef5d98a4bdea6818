"""The controls of the study of digits, by brute force."""

import runpy
from pathlib import Path

import pytest
import torch

CONTROLS = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "studies" / "controls.py"))


def kernel_of(layer, left, right):
    """exp(−‖a − b‖² / 2ℓ²) of each pair of rows, ``(n, m)``; ℓ² by the layer's kernel of two points
    at distance 1."""
    unit = torch.eye(1, layer.head_dim, dtype=torch.float64).expand(layer.heads, 1, -1)
    log_at_one = layer.kernel(unit, 0 * unit).log()[0, 0, 0]
    squares = (left[:, None] - right[None]).square().sum(-1)
    return (log_at_one * squares).exp()


def normalised(kernel_qk, kernel_kk, value):
    return (kernel_qk / kernel_qk.sum(1, keepdim=True)) @ value


def regression(kernel_qk, kernel_kk, value):
    return kernel_qk @ torch.linalg.inv(kernel_kk + torch.eye(len(value))) @ value


@pytest.mark.parametrize(("name", "law"), [("L2Softmax", normalised), ("ExactGP", regression)])
def test_each_head_is_its_formula_on_the_real_tokens(name, law):
    layer = CONTROLS[name](8, 2).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    output = layer(x, mask)
    for example, number in enumerate((5, 3, 1)):
        heads = []
        for query, key, value in zip(*(part[example] for part in layer.project(x)), strict=True):
            key, value = key[:number], value[:number]
            kernel_qk = kernel_of(layer, query, key)
            heads.append(law(kernel_qk, kernel_of(layer, key, key), value))
        expected = layer.out(torch.cat(heads, -1))
        torch.testing.assert_close(output[example, :number], expected[:number])
