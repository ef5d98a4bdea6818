"""Predictions of tokens do not depend on padding, batching or the number of samples."""

import math

import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_models import (
    F64,
    FIELDS,
    KEP,
    LAYERS,
    SENTENCES,
    SOFTMAX,
    WORDS,
    assert_same_tokens,
    batch,
    build,
    predicted,
)

from probattn import SGPAttention, draws
from probattn.draws import at_mean
from probattn.inference.prediction import predict as prediction


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(len(SENTENCES))),
    cuts=st.sets(st.integers(1, len(SENTENCES) - 1), max_size=3),
    more=st.integers(0, 3),
    word=st.integers(0, WORDS - 1),
    label=st.sampled_from([0, -100, 7]),
    layer=st.sampled_from([KEP, SOFTMAX]),
    mean=st.booleans(),
)
def test_padding_splitting_and_reordering_change_no_token(order, cuts, more, word, label, layer, mean):
    model, guide = build(layer)
    mixed = [SENTENCES[i] for i in order]
    edges = [0, *sorted(cuts), len(mixed)]
    pairs = list(zip(edges, edges[1:], strict=False))
    batches = [
        batch(mixed[a:b], more=more if number == 0 else 0, word=word, label=label)
        for number, (a, b) in enumerate(pairs)
    ]
    whole = [batch(SENTENCES)]
    if mean:
        with at_mean():
            found, expected = (predicted(model, guide, each) for each in (batches, whole))
    else:  # global latents are drawn once for all batches
        found, expected = (predicted(model, guide, each) for each in (batches, whole))
    back = torch.tensor(order).argsort()
    for field in FIELDS:
        rows = getattr(found, field)[back][found.mask[back]]
        torch.testing.assert_close(rows, getattr(expected, field)[expected.mask], msg=field)
    torch.testing.assert_close(found.log_prob(found.labels)[back], expected.log_prob(expected.labels))


def test_at_their_means_tokens_with_latents_of_their_own_do_not_depend_on_padding_either():
    model, guide = build(SGPAttention.partial(inducing=3))
    with at_mean():
        found = predicted(model, guide, [batch(SENTENCES[:2], more=3, word=2), batch(SENTENCES[2:], label=-100)])
        expected = predicted(model, guide, [batch(SENTENCES)])
    assert_same_tokens(found.tokens(), expected.tokens())


@LAYERS
@pytest.mark.parametrize("most", [1, 4, 9])
def test_pieces_of_a_batch_give_the_same(monkeypatch, layer, most):
    model, guide = build(layer)
    batches = [batch(SENTENCES[:4]), batch(SENTENCES[4:], more=1)]
    expected = predicted(model, guide, batches)
    monkeypatch.setattr(prediction, "CPU_CHUNK_SIZE", most)
    found = predicted(model, guide, batches)
    assert_same_tokens(found, expected)
    torch.testing.assert_close(found.log_prob(found.labels), expected.log_prob(expected.labels))


@LAYERS
@pytest.mark.parametrize("num_samples", [1, 3, 4, 7])
def test_as_many_draws_as_tokens_or_examples_are_not_confused_with_them(layer, num_samples):
    """Four sentences of up to seven tokens in three tags."""
    model, guide = build(layer)
    given = SENTENCES[:4]
    found = predicted(model, guide, [batch(given)], num_samples=num_samples, keep_draws=True)
    torch.manual_seed(1)
    with draws(num_samples):
        latents = poutine.trace(guide).get_trace(batch(given)[0])
    for row, (words, tags) in enumerate(given):
        joint, energy = 0.0, torch.zeros(len(words), dtype=F64)
        for s in range(num_samples):
            data = {name: node["value"][s, 0] for name, node in latents.nodes.items() if name.endswith(".u")}
            logits = poutine.condition(model.network, data=data)(words[None])[0].detach()
            probs = logits.softmax(-1)
            energy -= logits.exp().sum(-1).log() / num_samples
            torch.testing.assert_close(found.draws[s, row, : len(words)], probs)
            joint += probs[torch.arange(len(words)), tags].prod().item() / num_samples
        assert math.isclose(found.log_prob(found.labels)[row], math.log(joint), rel_tol=1e-9)
        torch.testing.assert_close(found.energy[row, : len(words)], energy)
