"""Transformers of texts: padding, splitting and reordering never matter to a real token, whatever the attention."""

import copy
import pickle

import pytest
import torch
from elbos import TraceMeanField_ELBO
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    draws,
    guides,
)
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.models import Classifier, Supervised, TextTagger, TextTransformer, last
from probattn.models.blocks import masked_mean
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding
from probattn.models.likelihoods import Categorical, TokenCategorical

F64 = torch.float64
SHAPE = {"max_length": 12, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 16, "depth": 2}
LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEPSVGPAttention.partial(rank=2),
    "sgpa": SGPAttention.partial(inducing=3, kernel="exponential"),
    "sgpa-standard": SGPAttention.partial(inducing=None, kernel="exponential"),
    "cgp": CGPAttention,
    "sparse-cgp": SparseCGPAttention.partial(inducing=2),
}
LENGTHS = st.lists(st.integers(1, 9), min_size=2, max_size=5)
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def text(kind=TextTransformer, **options):
    torch.manual_seed(0)
    return kind(WordEmbedding(20, 8), **(SHAPE | options)).double()


def batch(lengths, *, width=None, fill=0):
    """Random ids of those lengths, padded with a number that must not matter."""
    generator = torch.Generator().manual_seed(1)
    width = width or max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.full((len(lengths), width), fill)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, 20, (length,), generator=generator)
    return ids, mask


def told(network, x, mask):
    """The mean prediction: global sites at the prior's means, local ones at those of their posteriors."""
    is_tagger = isinstance(network, TextTagger)
    model = Supervised(network, TokenCategorical() if is_tagger else Categorical(), num_data=10)
    labels = torch.zeros(x.shape[:2] if is_tagger else len(x)).long()
    guide = guides.for_model(model)
    torch.manual_seed(3)
    with at_mean():
        return predict(model, guide, [(x, labels, mask)], num_samples=1)


@layers
@settings(deadline=None, max_examples=4)
@given(lengths=LENGTHS, more=st.integers(1, 3), fill=st.integers(1, 19))
def test_more_padding_and_what_stands_in_it_change_nothing(layer, lengths, more, fill):
    short, long = batch(lengths), batch(lengths, width=max(lengths) + more, fill=fill)
    for kind in (TextTransformer, TextTagger):
        expected = told(text(kind, attention=layer), *short).probs
        actual = told(text(kind, attention=layer), *long).probs
        if kind is TextTagger:
            expected, actual = expected[short[1]], actual[long[1]]
        assert_close(actual, expected, rtol=0, atol=1e-9)


@layers
@settings(deadline=None, max_examples=4)
@given(lengths=LENGTHS, data=st.data())
def test_splitting_and_reordering_a_batch_change_nothing(layer, lengths, data):
    order = data.draw(st.permutations(range(len(lengths))))
    x, mask = batch(lengths)
    whole = told(text(attention=layer), x, mask).probs
    parts = [
        told(text(attention=layer), x[[row]][:, : lengths[row]], mask[[row]][:, : lengths[row]]).probs for row in order
    ]
    assert_close(torch.cat(parts), whole[list(order)], rtol=0, atol=1e-9)


@layers
def test_loss_and_gradient_do_not_see_padding(layer):
    found = []
    for options in ({}, {"width": 9, "fill": 7}):
        network = text(attention=layer)
        model = Classifier(network, num_data=30)
        guide = guides.for_model(model).double()
        x, mask = batch([4, 1, 6], **options)
        torch.manual_seed(5)
        with at_mean():
            loss = TraceMeanField_ELBO()(model, guide)(x, torch.tensor([0, 2, 1]), mask)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in network.parameters() if p.grad is not None]))
    assert_close(found[0][0], found[1][0], rtol=1e-9, atol=0)
    for first, second in zip(found[0][1], found[1][1], strict=True):
        assert_close(first, second, rtol=1e-6, atol=1e-9)


def test_without_a_mask_all_tokens_are_real():
    network = text().eval()
    x = torch.randint(1, 20, (3, 5))
    assert_close(network(x), network(x, torch.ones(3, 5, dtype=torch.bool)))


def test_the_order_of_words_matters():
    network = text().eval()
    x = torch.tensor([[3, 4, 5]])
    assert not torch.allclose(network(x), network(x.flip(1)))


def test_draws_appear_at_the_first_stochastic_block_and_go_through_pooling():
    network = text(attention=last(1, KEPSVGPAttention.partial(rank=2), of=2)).eval()
    x, mask = batch([3, 5, 2])
    shapes = []
    network.blocks[0].register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    with draws(7):
        assert network(x, mask).shape == (7, 3, 3)
    assert shapes == [(3, 5, 8)]


@pytest.mark.parametrize("number", [3, 5])
def test_as_many_draws_as_texts_or_tokens_are_not_confused(number):
    network = text(attention=KEPSVGPAttention.partial(rank=2))
    model = Classifier(network, num_data=10)
    guide = guides.for_model(model).double()
    x, mask = batch([3, 5, 2])
    torch.manual_seed(2)
    whole = predict(model, guide, [(x, torch.zeros(3).long(), mask)], num_samples=number, keep_draws=True)
    torch.manual_seed(2)
    one = predict(model, guide, [(x[1:2], torch.zeros(1).long(), mask[1:2])], num_samples=number, keep_draws=True)
    assert_close(whole.draws[:, 1:2], one.draws)


def test_a_tagger_answers_every_token():
    network = text(TextTagger).eval()
    x, mask = batch([3, 5])
    assert network(x, mask).shape == (2, 5, 3)


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(ValueError, match="at most max_length=12 tokens, got 13"):
        text()(torch.ones(1, 13, dtype=torch.long))


def test_a_text_without_a_token_is_refused_by_its_row():
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match=r"without any token, rows \[1\]"):
        text()(torch.ones(2, 2, dtype=torch.long), mask)


def test_a_fixed_length_merge_refuses_varying_lengths_by_name():
    with pytest.raises(ValueError, match='merge="concat" has weights over tokens: give tokens=N, or use merge="add"'):
        text(attention=KEPSVGPAttention.partial(rank=2, merge="concat"))
    network = text(attention=KEPSVGPAttention.partial(rank=2, merge="concat", tokens=5))
    with pytest.raises(ValueError, match='built for 5 tokens, got 4; where the length varies, use merge="add"'):
        network(torch.ones(1, 4, dtype=torch.long))


def test_inducing_inputs_are_taken_from_real_tokens_alone():
    network = text(attention=LAYERS["sgpa"], dropout=0.5)
    x, mask = batch([2, 1], width=6, fill=9)
    seen = []
    network.blocks[0].attention.initialise = seen.append
    network.initialise_inducing(x, mask)
    network.eval()
    assert_close(seen[0], network.tokens(x)[mask])
    assert network.eval().dropout.training is False


def test_words_may_come_spelled_or_as_features():
    torch.manual_seed(0)
    spelled = TextTransformer(SpelledEmbedding(20, 9, 8), **SHAPE)
    assert spelled(torch.randint(0, 9, (2, 4, 6))).shape == (2, 3)
    features = TextTransformer(torch.nn.Linear(5, 8), **SHAPE)
    assert features(torch.randn(2, 4, 5), torch.ones(2, 4, dtype=torch.bool)).shape == (2, 3)


def test_the_mean_is_over_real_tokens_whatever_stands_at_padding():
    x = torch.tensor([[[1.0], [3.0], [torch.nan]], [[5.0], [torch.inf], [0.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert_close(masked_mean(x, mask), torch.tensor([[2.0], [5.0]]))
    assert_close(masked_mean(x.expand(4, -1, -1, -1), mask), torch.tensor([[2.0], [5.0]]).expand(4, -1, -1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_copy_is_the_same_down_to_its_blocks(copied):
    network, (x, mask) = text(attention=KEPSVGPAttention.partial(rank=2)), batch([1, 4, 3])
    again = copied(network)
    torch.manual_seed(1)
    expected = network(x, mask)
    torch.manual_seed(1)
    assert torch.equal(again(x, mask), expected)
    again.initialise_inducing(x, mask)
    assert [name for name, _ in guides.latent_sites(again)] == [name for name, _ in guides.latent_sites(network)]
