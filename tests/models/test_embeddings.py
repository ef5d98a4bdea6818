"""Embeddings of words and of their spelling against loops over characters."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from probattn.models.embeddings import SpelledEmbedding, SpellingEmbedding, WordEmbedding

WORDS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=6)


def padded(words, length):
    return torch.tensor([word + [0] * (length - len(word)) for word in words])


def by_hand(module, word):
    """The vector of one word: each filter slid over the word with zeros around it, a place at a time."""
    vectors = module.characters(torch.tensor(word)).T
    found = []
    for filters in module.filters:
        number, _, length = filters.weight.shape
        around = F.pad(vectors, (length - 1, length - 1))
        places = [around[:, at : at + length] for at in range(len(word) + length - 1)]
        answers = torch.stack([(filters.weight * place).sum((1, 2)) + filters.bias for place in places])
        assert answers.shape == (len(word) + length - 1, number)
        found.append(answers.max(0).values)
    found = torch.cat(found).clamp(min=0)
    gate = torch.sigmoid(module.gate(found))
    return module.out(gate * module.change(found).clamp(min=0) + (1 - gate) * found)


@settings(deadline=None, max_examples=30)
@given(words=WORDS)
def test_spelling_equals_filters_slid_over_each_word(words):
    torch.manual_seed(0)
    module = SpellingEmbedding(10, 6).double()
    expected = torch.stack([by_hand(module, word) for word in words])
    assert_close(module(padded(words, 7)), expected)


@settings(deadline=None, max_examples=30)
@given(words=WORDS, more=st.integers(0, 5))
def test_zeros_behind_a_words_end_do_not_matter(words, more):
    torch.manual_seed(0)
    module = SpellingEmbedding(10, 6).double()
    assert_close(module(padded(words, 7)), module(padded(words, 7 + more)), rtol=0, atol=1e-12)


def test_padding_between_words_gives_no_nan_and_no_gradient_of_nan():
    module = SpellingEmbedding(10, 6)
    characters = torch.tensor([[[3, 4, 0], [0, 0, 0]], [[0, 0, 0], [5, 0, 0]]])
    out = module(characters)
    assert out.shape == (2, 2, 6)
    out.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_only_padding_is_a_batch_too():
    assert SpellingEmbedding(10, 6)(torch.zeros(1, 2, 4, dtype=torch.long)).isfinite().all()


def test_a_spelled_word_is_the_sum_of_its_two_vectors():
    module = SpelledEmbedding(8, 10, 6)
    x = torch.tensor([[[2, 4, 5, 0], [0, 0, 0, 0]]])
    expected = module.words.weight[2] + module.spelling(torch.tensor([[4, 5, 0]]))[0]
    assert_close(module(x)[0, 0], expected)


def test_two_unknown_words_differ_by_their_spelling_alone():
    module = SpelledEmbedding(8, 10, 6)
    first, second = module(torch.tensor([[[1, 4, 5], [1, 5, 4]]]))[0]
    assert not torch.allclose(first, second)
    assert_close(
        first - second, module.spelling(torch.tensor([4, 5])[None])[0] - module.spelling(torch.tensor([5, 4])[None])[0]
    )


def test_the_vector_of_padding_is_zero_and_stays_so():
    module = WordEmbedding(5, 3, scale=2.0)
    assert torch.equal(module.weight[0], torch.zeros(3))
    module(torch.tensor([[0, 1]])).sum().backward()
    assert torch.equal(module.weight.grad[0], torch.zeros(3))


def test_the_scale_of_words_is_that_of_their_scalars():
    torch.manual_seed(0)
    assert abs(WordEmbedding(2000, 50, scale=0.1).weight[1:].std() - 0.1) < 0.002
