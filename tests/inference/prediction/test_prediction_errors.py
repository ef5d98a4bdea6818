"""Errors of prediction: broken inputs, weights and numerics, with the batch's number."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from known_predictives import F64, build
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SGPAttention, guides
from probattn.functional import jitter
from probattn.functional.errors import NumericalError
from probattn.inference import predict
from probattn.models import Supervised
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_inputs_are_refused_with_their_batch(value):
    model, guide = build()
    x = torch.randn(2, 5, 3, dtype=F64)
    broken = x.clone()
    broken[1, 2, 0] = value
    with pytest.raises(ValueError, match="NaN or Inf in the inputs of batch 2"):
        predict(model, guide, [x, x, broken])


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(), Bernoulli(), TokenCategorical()])
def test_broken_weights_are_named_with_the_batch(likelihood):
    model, guide = build(likelihood, pool=not isinstance(likelihood, TokenCategorical))
    with torch.no_grad():
        model.network.head.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"batch 0: NaN or Inf in parameter network\.head\.weight of the model"):
        predict(model, guide, torch.randn(2, 5, 3, dtype=F64))


def test_outputs_that_overflow_from_finite_weights_are_refused_with_the_batch():
    model, guide = build()
    with torch.no_grad():
        model.network.embed.weight.fill_(1e200)
        model.network.head.weight.fill_(1e200)
    x = torch.randn(2, 5, 3, dtype=F64)
    with pytest.raises(ValueError, match=r"(?s)Expected parameter.*\nbatch 0"):
        predict(model, guide, [(x, torch.tensor([0, 1]))])


@pytest.mark.parametrize("data", [[], DataLoader(TensorDataset(torch.zeros(0, 5, 3)), batch_size=2)])
def test_no_data_is_an_error(data):
    model, guide = build()
    with pytest.raises(ValueError, match="no data to predict"):
        predict(model, guide, data)


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_draws_below_one_is_refused(number):
    model, guide = build()
    with pytest.raises(ValueError, match="positive number"):
        predict(model, guide, torch.randn(2, 5, 3, dtype=F64), num_samples=number)


def test_a_network_that_pools_over_the_batch_is_refused():
    class Wrong(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = KEPSVGPAttention(4, 2, rank=2)

        def forward(self, x):
            return self.attention(x).mean(1)

    model = Supervised(Wrong(), Categorical(), num_data=8)
    with pytest.raises(ValueError, match="index from the right"):
        predict(model, guides.for_model(model), torch.randn(3, 5, 4))


def test_what_the_numerics_refuse_stays_their_error_and_names_the_batch():
    """Of finite weights, and of a broken one, which is named too."""
    model, guide = build(attention=SGPAttention.partial(inducing=2))
    weight = model.network.layers[0].query_value.weight
    x = torch.randn(2, 5, 3, dtype=F64)
    with torch.no_grad():
        weight.mul_(1e200)
    with pytest.raises(NumericalError, match=r"(?s)^SGPAttention 'network\.layers\.0': .*\nbatch 0$"):
        predict(model, guide, x)
    with torch.no_grad():
        weight[0, 0] = math.nan
    with pytest.raises(NumericalError, match=r"(?s)^SGPAttention .*\nbatch 0: NaN or Inf in parameter .*query_value"):
        predict(model, guide, x)


def test_a_matrix_that_is_not_positive_definite_is_not_called_nan():
    model, guide = build(attention=SGPAttention.partial(inducing=2))

    def refuse(module, inputs):
        if len(inputs[0]) == 3:
            jitter.cholesky(-torch.eye(2, dtype=F64), "C")

    model.network.layers[0].register_forward_pre_hook(refuse)
    with pytest.raises(NumericalError, match=r"(?s)not positive definite.*\nbatch 1$"):
        predict(model, guide, torch.randn(5, 5, 3, dtype=F64).split([2, 3]))


class OwnSite(nn.Module):
    """A network with a statement of its own, whose value has no dimension for samples of a batch."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(8, 2, rank=2), nn.Linear(8, 3)

    def forward(self, x):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        return self.head(self.attention(x).mean(-2)) + shift


def test_samples_of_a_users_own_site_are_not_taken_for_examples():
    model, x = Supervised(OwnSite(), Categorical(), num_data=10), torch.randn(4, 5, 8)
    with pytest.raises(ValueError, match="shift .*vectorize=False"):
        predict(model, None, x, num_samples=4)
    assert predict(model, None, x, num_samples=4, vectorize=False, keep_draws=True).draws.shape == (4, 4, 3)
    samples = {"shift": torch.randn(4, 3), "network.attention.u": torch.randn(4, 2, 2, 2)}
    prediction = predict(model, samples, x, keep_draws=True, num_samples=4)
    values = {name: value[2] for name, value in samples.items()}
    with torch.no_grad():
        expected = pyro.condition(model.eval().likelihood_of, data=values)(x).probs
    torch.testing.assert_close(prediction.draws[2], expected)
