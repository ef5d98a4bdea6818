"""The transformer for tables: tokens of columns by their formula, units, and networks with every layer."""

import pytest
import torch

from probattn import KEPSVGPAttention, guides
from probattn.inference import predict
from probattn.models import Supervised, TabularTransformer, likelihoods
from probattn.models.tabular import ColumnEmbedding

SHAPE = {"outputs": 1, "dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}


def test_the_token_of_a_number_is_linear_and_that_of_a_category_its_embedding():
    torch.manual_seed(0)
    embedding = ColumnEmbedding([None, 3, None, 4], 5).double()
    x = torch.tensor([[0.5, 2, -1.0, 3], [2.0, 0, 0.0, 1]], dtype=torch.float64)
    found = embedding(x)
    weight, bias, codes = embedding.weight, embedding.bias, embedding.codes.weight
    for row in range(2):
        assert torch.allclose(found[row, 0], x[row, 0] * weight[0] + bias[0])
        assert torch.allclose(found[row, 2], x[row, 2] * weight[2] + bias[2])
    assert torch.allclose(found[0, 1], codes[2] + bias[1])
    assert torch.allclose(found[0, 3], codes[3 + 3] + bias[3])  # after the 3 codes of the other column
    assert torch.allclose(found[1, 3], codes[3 + 1] + bias[3])
    assert torch.equal(found[1, 1], bias[1])  # unknown


def test_every_code_has_a_vector_of_its_own():
    embedding = ColumnEmbedding([3, 2], 4)
    x = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    tokens = embedding(x) - embedding.bias
    vectors = torch.stack([tokens[0, 0], tokens[1, 0], tokens[0, 1]])
    assert len(vectors.unique(dim=0)) == 3


def test_outputs_are_in_the_units_of_the_labels():
    torch.manual_seed(0)
    network = TabularTransformer([None, 3], **SHAPE, units=(10.0, 3.0))
    x = torch.tensor([[0.3, 1.0]])
    hidden = network.norm(network.blocks(network.tokens(x)).mean(-2))
    assert torch.allclose(network(x), 10 + 3 * network.head(hidden))
    assert torch.equal(network.state_dict()["units"], torch.tensor([10.0, 3.0]))


def test_rows_have_their_number_of_columns():
    with pytest.raises(ValueError, match=r"rows of 2 columns, got \(4, 3\)"):
        TabularTransformer([None, None], **SHAPE)(torch.zeros(4, 3))


def test_a_regression_predicts_with_samples():
    torch.manual_seed(0)
    attention = KEPSVGPAttention.partial(rank=2, tokens=3)
    network = TabularTransformer([None, None, 4], **SHAPE, attention=attention, units=(100.0, 1.0))
    model = Supervised(network, likelihoods.Gaussian(1.0), num_data=6)
    network.initialise_inducing(torch.zeros(6, 3))
    found = predict(model, guides.for_model(model), torch.rand(6, 3).round(), num_samples=4)
    assert found.mean.shape == (6, 1)
    assert (found.mean - 100).abs().max() < 10
