"""Layers on hostile inputs, among them every kind that once ended in an error without a name."""

import random

import pytest
import torch
from elbos import TraceMeanField_ELBO
from hostile_layers import Network, fuzz_layers
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention, guides
from probattn.inference import predict
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 5000), marks=pytest.mark.slow)], ids=len)
def test_finite_numbers_or_an_error_with_a_message(seeds):
    for seed in seeds:
        fuzz_layers(random.Random(seed))


@pytest.mark.parametrize(
    "layer", [SoftmaxAttention, KEPSVGPAttention.partial(rank=2), SGPAttention.partial(inducing=3)]
)
def test_a_batch_without_examples_or_tokens_is_named(layer):
    model = Supervised(Network(layer), Categorical(), num_data=10)
    guide = guides.for_model(model)
    for shape, message in (((0, 4, 8), "no examples|empty"), ((2, 0, 8), "without any token")):
        x, y = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.long)
        with pytest.raises(ValueError, match=message):
            TraceMeanField_ELBO()(model, guide)(x, y)
        with pytest.raises(ValueError, match=message):
            predict(model, guide, [(x, y)])


def test_outputs_with_more_dimensions_than_the_likelihood_takes_are_refused():
    model = Supervised(nn.Linear(8, 3), Categorical(), num_data=10)
    with pytest.raises(ValueError, match=r"batch shape \(1, 4, 1\).*\(samples, examples\)"):
        predict(model, guides.for_model(model), torch.zeros(1, 4, 1, 8))
