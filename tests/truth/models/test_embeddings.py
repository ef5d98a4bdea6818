"""Embeddings of words, of their spelling and of a table's columns against loops."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from probattn.models.embeddings import SpelledEmbedding, SpellingEmbedding, WordEmbedding
from probattn.models.tabular import ColumnEmbedding


def spelling_by_hand(module, word):
    """The vector of one word: each filter slid over the word with zeros around it, a place at a
    time."""
    vectors = module.characters(torch.tensor(word)).T
    maxima = []
    for filters in module.filters:
        length = filters.weight.shape[-1]
        around = F.pad(vectors, (length - 1, length - 1))
        places = [around[:, start : start + length] for start in range(len(word) + length - 1)]
        responses = torch.stack(
            [(filters.weight * place).sum((1, 2)) + filters.bias for place in places]
        )
        maxima.append(responses.max(0).values)
    features = torch.cat(maxima).clamp(min=0)
    gate = torch.sigmoid(module.gate(features))
    return module.out(gate * module.change(features).clamp(min=0) + (1 - gate) * features)


@settings(deadline=None, max_examples=6)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=6),
    st.integers(0, 5),
)
@torch.no_grad()
def test_spelling_equals_filters_slid_over_each_word_whatever_its_padding(words, padding):
    torch.manual_seed(0)
    module = SpellingEmbedding(10, 6).double()
    characters = torch.tensor([word + [0] * (7 + padding - len(word)) for word in words])
    assert_close(
        module(characters), torch.stack([spelling_by_hand(module, word) for word in words])
    )


def test_padding_between_words_gives_finite_vectors_and_gradients():
    module = SpellingEmbedding(10, 6)
    for characters in ([[[3, 4, 0], [0, 0, 0]], [[0, 0, 0], [5, 0, 0]]], [[[0, 0, 0]]]):
        module(torch.tensor(characters)).sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_a_spelled_word_is_the_sum_of_its_two_vectors():
    module = SpelledEmbedding(8, 10, 6)
    expected = module.words.weight[2] + module.spelling(torch.tensor([[4, 5, 0]]))[0]
    assert_close(module(torch.tensor([[[2, 4, 5, 0], [0, 0, 0, 0]]]))[0, 0], expected)


def test_the_vector_of_padding_is_and_stays_zero():
    module = WordEmbedding(20, 5)
    module(torch.tensor([[0, 1]])).sum().backward()
    assert not module.weight[0].any()
    assert not module.weight.grad[0].any()


def test_the_token_of_a_number_is_linear_and_that_of_a_category_its_own_vector():
    embedding = ColumnEmbedding([None, 3, None, 4], 5).double()
    x = torch.tensor([[0.5, 2, -1.0, 3], [2.0, 0, 0.0, 1]], dtype=torch.float64)
    tokens = embedding(x)
    weight = embedding.weight
    bias = embedding.bias
    codes = embedding.codes.weight
    for row in range(2):
        for column in (0, 2):
            assert_close(tokens[row, column], x[row, column] * weight[column] + bias[column])
    assert_close(tokens[0, 1], codes[2] + bias[1])
    assert torch.equal(tokens[1, 1], bias[1]), "an unknown category"
    for row, code in enumerate((3, 1)):
        assert_close(
            tokens[row, 3], codes[3 + code] + bias[3]
        )  # behind the three codes of the other column
