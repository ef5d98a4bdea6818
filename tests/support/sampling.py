"""Random tensors that depend on their seed alone, programs at given values of their sites, and
moments of draws."""

from contextlib import ExitStack, contextmanager

import pyro.poutine as poutine
import torch

from probattn import local_sites


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def run(layer, x, mask=None, **values):
    """The trace of a layer given some of its sites, with its examples as the whole data set."""
    with local_sites(batch=x.shape[-3], num_data=x.shape[-3]):
        return poutine.trace(poutine.condition(layer, data=values)).get_trace(x, mask)


def output(layer, x, mask=None, **values):
    return run(layer, x, mask, **values).nodes["_RETURN"]["value"]


@contextmanager
def under(*handlers):
    """Run a block under all of these handlers, the first outermost."""
    with ExitStack() as stack:
        for handler in handlers:
            stack.enter_context(handler)
        yield


def assert_moments(draws, mean, covariance):
    """Mean and covariance of normal draws ``(S, n)`` are these within five standard errors."""
    variance, number = covariance.diagonal(), len(draws)
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / number).sqrt() + 1e-9).all()
    error = ((torch.outer(variance, variance) + covariance.square()) / number).sqrt()
    assert ((draws.T.cov() - covariance).abs() < 5 * error + 1e-9).all()
