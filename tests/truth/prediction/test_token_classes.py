"""A class per token: no prediction, objective or gradient depends on padding, batches or the number
of draws."""

import math

import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_predictives import assert_classes_of
from token_models import (
    FIELDS,
    KEP,
    LAYERS,
    SENTENCES,
    SOFTMAX,
    WORDS,
    batch,
    build,
    predicted,
    sentences,
)
from torch.testing import assert_close

from probattn import SGPAttention, draws, guides
from probattn.draws import at_mean
from probattn.inference import metrics
from probattn.inference.prediction import replays as prediction
from probattn.models import Supervised
from probattn.models.likelihoods import TokenCategorical

LENGTHS = [len(words) for words, _ in SENTENCES]


def assert_same_tokens(result, expected, order):
    back = torch.tensor(order).argsort()
    assert result.mask[back].sum(1).tolist() == LENGTHS
    for field in (*FIELDS, "labels"):
        rows = getattr(result, field)[back][result.mask[back]]
        assert_close(rows, getattr(expected, field)[expected.mask], msg=field)
    assert_close(result.log_prob(result.labels)[back], expected.log_prob(expected.labels))


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(len(SENTENCES))),
    cuts=st.sets(st.integers(1, len(SENTENCES) - 1)),
    more=st.integers(0, 3),
    word=st.integers(0, WORDS - 1),
    label=st.sampled_from([0, -100, 7]),
    layer=st.sampled_from([KEP, SOFTMAX, "at its mean"]),
    chunk=st.sampled_from([1, 4, 9, 256]),
)
def test_padding_splitting_and_reordering_change_no_token(
    order, cuts, more, word, label, layer, chunk
):
    """Global latents are drawn once for all batches; local ones, of each token, are at their means
    here."""
    model, guide = build(SGPAttention.partial(inducing=3) if layer == "at its mean" else layer)
    edges = [0, *sorted(cuts), len(order)]
    parts = [[SENTENCES[i] for i in order[a:b]] for a, b in zip(edges, edges[1:], strict=False)]
    batches = [batch(part, more=more, word=word, label=label) for part in parts]
    with (
        pytest.MonkeyPatch.context() as patch,
        at_mean() if layer == "at its mean" else torch.no_grad(),
    ):
        expected = predicted(model, guide, [batch(SENTENCES)])
        patch.setattr(prediction, "CPU_CHUNK_SIZE", chunk)
        assert_same_tokens(predicted(model, guide, batches), expected, order)


@LAYERS
@pytest.mark.parametrize("num_samples", [3, 4, 7])
def test_every_field_of_every_token_by_hand(layer, num_samples):
    """Four sentences of up to seven tokens in three tags: as many draws as tags, sentences or
    tokens."""
    model, guide = build(layer)
    given = SENTENCES[:4]
    result = predicted(
        model, guide, [batch(given, more=1, label=-100)], num_samples=num_samples, keep_draws=True
    )
    torch.manual_seed(1)
    with draws(num_samples):
        latents = poutine.trace(guide).get_trace(batch(given)[0])
    for row, (words, tags) in enumerate(given):
        logits = []
        for s in range(num_samples):
            data = {
                name: node["value"][s, 0]
                for name, node in latents.nodes.items()
                if name.endswith(".u")
            }
            logits.append(poutine.condition(model.network, data=data)(words[None])[0].detach())
        assert_classes_of(result[row].tokens(), torch.stack(logits))
        probs = torch.stack(logits).softmax(-1)
        assert_close(result.draws[:, row, : len(words)], probs)
        joint = probs[:, torch.arange(len(words)), tags].prod(-1).mean().item()
        assert math.isclose(result.log_prob(result.labels)[row], math.log(joint), rel_tol=1e-9)
    log_prob = result.log_prob(
        result.labels.where(result.mask, -100)
    )  # whatever the label at padding is
    assert torch.equal(log_prob, result.log_prob(result.labels))
    for field in (*FIELDS, "labels"):
        assert (getattr(result, field)[~result.mask] == 0).all(), field
    assert (result.draws[:, ~result.mask] == 0).all()
    with pytest.raises(ValueError, match="sum"):  # metrics take no padding
        metrics.evaluate(result.probs.flatten(0, 1), result.labels.flatten())


def test_tokens_are_the_real_ones_in_order():
    model, guide = build(KEP)
    batches = [
        batch(SENTENCES[:2]),
        batch(SENTENCES[2:4]),
        batch(SENTENCES[4:])[:2],
    ]  # the last one has no padding
    whole = predicted(model, guide, batches, num_samples=5, keep_draws=True)
    tokens = whole.tokens()
    assert torch.equal(tokens.labels, torch.cat([tags for _, tags in SENTENCES]))
    rows = [(row, t) for row, (words, _) in enumerate(SENTENCES) for t in range(len(words))]
    for number, (row, t) in enumerate(rows):
        assert torch.equal(tokens.draws[:, number], whole.draws[:, row, t])
        for field in FIELDS:
            assert torch.equal(getattr(tokens, field)[number], getattr(whole, field)[row, t])
    assert_close(tokens.log_prob(tokens.labels), tokens.log_probs[torch.arange(23), tokens.labels])
    assert metrics.evaluate(whole) == metrics.evaluate(tokens.probs, tokens.labels)


def test_a_likelihood_that_counts_fewer_tokens_than_the_mask_says_which():
    """Labels at some tokens only, such as at the first of a word's pieces."""
    first = torch.tensor([True, False, True, True, False])

    class FirstPieces(TokenCategorical):
        def forward(self, outputs, mask=None):
            return super().forward(outputs, mask & first)

    model = Supervised(build(KEP)[0].network, FirstPieces(), num_data=3)
    x, y, mask = batch(sentences([5, 2, 4]))
    result = predicted(
        model, guides.for_model(model), [(x, torch.where(mask & first, y, -100), mask)]
    )
    assert torch.equal(result.mask, mask & first)
    assert len(result.tokens().labels) == 3 + 1 + 3
    assert result.log_prob(result.labels).isfinite().all()
