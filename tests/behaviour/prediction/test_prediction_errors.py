"""Inputs, labels, weights and networks that would give a wrong prediction are errors that name
their place."""

import math

import pytest
import torch
from float64 import randn64
from known_predictives import build
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import SGPAttention, guides
from probattn.functional.errors import NumericalError
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Classifier, Supervised
from probattn.models.likelihoods import Categorical, Gaussian, TokenCategorical

X, Y = torch.randn(8, 4), torch.arange(8) % 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_inputs_are_named_with_their_batch(value):
    model, guide = build()
    x = randn64(2, 5, 3)
    broken = x.clone()
    broken[1, 2, 0] = value
    with pytest.raises(ValueError, match="batch 2"):
        predict(model, guide, [x, x, broken])


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(), TokenCategorical()])
def test_broken_weights_are_named_with_the_batch(likelihood):
    model, guide = build(likelihood, pool=not isinstance(likelihood, TokenCategorical))
    with torch.no_grad():
        model.network.head.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"batch 0: .*network\.head\.weight"):
        predict(model, guide, randn64(2, 5, 3))


def test_numerical_failures_name_the_layer_and_the_batch():
    model, guide = build(attention=SGPAttention.partial(inducing=2))
    with torch.no_grad():
        model.network.layers[0].query_value.weight.mul_(1e200)
    with pytest.raises(NumericalError, match=r"(?s)network\.layers\.0.*batch 0"):
        predict(model, guide, randn64(2, 5, 3))


def test_no_data_and_no_samples_are_errors():
    model, guide = build()
    for data in ([], DataLoader(TensorDataset(torch.zeros(0, 5, 3)), batch_size=2)):
        with pytest.raises(ValueError, match="no data"):
            predict(model, guide, data)
    with pytest.raises(ValueError, match="positive"):
        predict(model, guide, randn64(2, 5, 3), num_samples=0)


@pytest.mark.parametrize(
    "batch",
    [
        (X, Y[:1]),
        (X, Y, torch.ones(7, 4, dtype=torch.bool)),
        (X[:0], Y[:0]),
        {"x": X[:0], "y": Y[:0]},
    ],
)
def test_batches_of_unequal_lengths_and_empty_ones_are_errors_everywhere(batch):
    model = Classifier(nn.Linear(4, 3), num_data=8)
    with pytest.raises(ValueError, match=r"8 inputs|empty"):
        predict(model, None, [batch])
    with pytest.raises(ValueError, match=r"8 inputs|empty"):
        fit(model, guides.for_model(model), [batch], options=TrainOptions(epochs=1), progress=False)


@pytest.mark.parametrize(
    ("likelihood", "labels"),
    [
        (Categorical(), Y[:, None]),
        (Categorical(), nn.functional.one_hot(Y)),
        (Gaussian(), torch.zeros(8)),
        (TokenCategorical(), Y),
        (TokenCategorical(), Y[:, None]),
    ],
)
def test_labels_that_would_broadcast_are_errors(likelihood, labels):
    model = Supervised(nn.Linear(4, 3), likelihood, num_data=8)
    x = X[:, None].expand(8, 5, 4) if isinstance(likelihood, TokenCategorical) else X
    with pytest.raises(ValueError, match="labels of shape"):
        predict(model, None, [(x, labels)])
    with pytest.raises(ValueError, match="labels of shape"):
        predict(model, None, [x[:3], x[3:]]).log_prob(labels)


def test_labels_of_a_density_are_class_indices():
    result = predict(Classifier(nn.Linear(4, 3), num_data=8), None, X)
    for labels in (Y + 0.7, Y + 1, Y - 1):
        with pytest.raises(ValueError, match="class indices"):
            result.log_prob(labels)
