"""Roots and first integers of functions that are known."""

import torch
from scipy import stats

from probattn.inference.prediction.root_finding import bracket, first_integer, root

F64 = torch.float64


def test_roots_of_hard_functions_to_ten_digits_in_few_evaluations():
    """A cube that is flat at its root, tails, steps so steep that they jump, and a line."""
    truth = torch.tensor([0.0, 3.5, -1e-6, 1e6, 12.25], dtype=F64)
    calls = []

    def function(x):
        calls.append(x)
        y = x - truth
        return torch.stack([y[0] ** 3, y[1].exp() - 1, (1e9 * y[2]).tanh(), y[3], y[4].sign() * y[4].abs().sqrt()])

    low = torch.tensor([-9.0, -20.0, -1.0, -3e6, 0.0], dtype=F64)
    found = root(function, low, torch.tensor([11.0, 30.0, 2.0, 2e6, 100.0], dtype=F64))
    torch.testing.assert_close(found[1:], truth[1:], rtol=1e-9, atol=1e-12)
    assert abs(found[0]) < 1e-4
    assert len(calls) < 80


def test_quantiles_of_a_gaussian_take_about_ten_evaluations():
    calls = []
    levels = torch.tensor([0.001, 0.05, 0.5, 0.95, 0.9999], dtype=F64)

    def function(x):
        calls.append(x)
        return torch.as_tensor(stats.norm.cdf(x)) - levels

    found = root(function, torch.full((5,), -9.0, dtype=F64), torch.full((5,), 9.0, dtype=F64))
    torch.testing.assert_close(found, torch.as_tensor(stats.norm.ppf(levels)), rtol=1e-9, atol=1e-12)
    assert len(calls) < 20


def test_brackets_and_first_integers():
    truth = torch.tensor([-1000.0, 0.0, 3.0, 123456.0], dtype=F64)
    low, high = bracket(lambda x: x >= truth, torch.full((4,), -1.0, dtype=F64), torch.full((4,), 1.0, dtype=F64))
    assert (low < truth).all()
    assert (high >= truth).all()
    assert torch.equal(first_integer(lambda x: x >= truth, low, high), truth)
