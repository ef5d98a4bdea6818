"""A class per token, end to end: sentences of varying length, padding that never counts, metrics over real tokens."""

import math

import pytest
import torch
from elbos import TraceMeanField_ELBO
from token_models import (
    FIELDS,
    KEP,
    LAYERS,
    SENTENCES,
    TAGS,
    Tagger,
    assert_same_tokens,
    batch,
    build,
    predicted,
    sentences,
)

from probattn import guides
from probattn.inference import TemperatureScaling, metrics
from probattn.inference.methods.temperature import scale
from probattn.inference.metrics import ood
from probattn.models import Supervised
from probattn.models.likelihoods import TokenCategorical


@LAYERS
def test_batches_of_different_lengths_are_what_each_sentence_alone_gives(layer):
    model, guide = build(layer)
    whole = predicted(model, guide, [batch(SENTENCES[:2]), batch(SENTENCES[2:])], keep_draws=True)
    lengths = torch.tensor([len(words) for words, _ in SENTENCES])
    assert torch.equal(whole.mask, torch.arange(7) < lengths.unsqueeze(1))
    assert whole.probs.shape == (6, 7, TAGS)
    for row, (words, tags) in enumerate(SENTENCES):
        alone = predicted(model, guide, [(words[None], tags[None])], keep_draws=True)
        assert alone.mask.all()
        for field in (*FIELDS, "labels"):
            own = getattr(whole, field)[row, : len(words)]
            torch.testing.assert_close(own, getattr(alone, field)[0], msg=field)
        torch.testing.assert_close(whole.draws[:, row, : len(words)], alone.draws[:, 0])
    if layer is KEP:
        assert (whole.mutual_information[whole.mask] > 1e-6).all()


@LAYERS
def test_everything_at_padding_is_zero_and_metrics_refuse_it(layer):
    model, guide = build(layer)
    batches = [batch(SENTENCES[:2], more=1, label=-100), batch(SENTENCES[2:], label=99)]
    whole = predicted(model, guide, batches, keep_draws=True)
    for field in (*FIELDS, "labels"):
        assert (getattr(whole, field)[~whole.mask] == 0).all(), field
    assert (whole.draws[:, ~whole.mask] == 0).all()
    assert whole.log_probs.isfinite().all()
    with pytest.raises(ValueError, match="sum"):
        metrics.evaluate(whole.probs.flatten(0, 1), whole.labels.flatten())


@LAYERS
def test_entropies_and_log_prob_by_hand(layer):
    model, guide = build(layer)
    batches = [batch(SENTENCES[:2], more=2, label=-100), batch(SENTENCES[2:])]
    whole = predicted(model, guide, batches, num_samples=4, keep_draws=True)
    log_prob = whole.log_prob(torch.where(whole.mask, whole.labels, -100))
    for row, (words, tags) in enumerate(SENTENCES):
        joint = 0.0
        for s in range(4):
            joint += math.prod(whole.draws[s, row, t, tag].item() for t, tag in enumerate(tags)) / 4
        assert math.isclose(log_prob[row], math.log(joint), rel_tol=1e-9)
        for t in range(len(words)):
            rows = [whole.draws[s, row, t].tolist() for s in range(4)]
            mean = [sum(column) / 4 for column in zip(*rows, strict=True)]
            entropies = [-sum(p * math.log(p) for p in each) for each in (mean, *rows)]
            assert math.isclose(whole.entropy[row, t], entropies[0], rel_tol=1e-9)
            assert math.isclose(whole.expected_entropy[row, t], sum(entropies[1:]) / 4, rel_tol=1e-9)
            information = entropies[0] - sum(entropies[1:]) / 4
            assert math.isclose(whole.mutual_information[row, t], information, rel_tol=1e-6, abs_tol=1e-12)


def test_a_batch_without_a_mask_has_real_tokens_only():
    model, guide = build(KEP)
    found = predicted(model, guide, [batch(SENTENCES[:4]), batch(SENTENCES[4:])[:2]])
    assert found.mask.sum(1).tolist() == [5, 2, 7, 1, 4, 4]
    assert_same_tokens(found, predicted(model, guide, [batch(SENTENCES)]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_may_be_small_integers(dtype):
    model, guide = build(KEP)
    expected = predicted(model, guide, [batch(SENTENCES)])
    batches = [(x, y.to(dtype), mask) for x, y, mask in (batch(SENTENCES[:2]), batch(SENTENCES[2:], label=99))]
    found = predicted(model, guide, batches)
    assert found.labels.dtype == dtype
    assert torch.equal(found.labels, expected.labels.to(dtype))
    torch.testing.assert_close(found.log_prob(found.labels), expected.log_prob(expected.labels))


def test_a_likelihood_that_counts_fewer_tokens_than_the_mask_says_which():
    """Labels at some tokens only, such as at the first of a word's pieces."""
    first = torch.tensor([True, False, True, True, False])

    class FirstPieces(TokenCategorical):
        def forward(self, outputs, mask=None):
            return super().forward(outputs, mask & first)

    model = Supervised(Tagger(KEP), FirstPieces(), num_data=3).double()
    x, y, mask = batch(sentences([5, 2, 4]))
    found = predicted(model, guides.for_model(model), [(x, torch.where(mask & first, y, -100), mask)])
    assert torch.equal(found.mask, mask & first)
    assert len(found.tokens().labels) == 3 + 1 + 3
    assert found.log_prob(found.labels).isfinite().all()


def test_labels_of_another_shape_are_refused():
    model, guide = build(KEP)
    x, y, mask = batch(SENTENCES)
    whole = predicted(model, guide, [batch(SENTENCES[:2]), batch(SENTENCES[2:])])
    for wrong in (y[:, :5], y[:5], y[:, 0]):
        with pytest.raises(ValueError, match=r"labels of shape \(6, 7\)"):
            whole.log_prob(wrong)
    with pytest.raises(ValueError, match=r"labels of shape \(6, 7\), got \(6, 1\)"):
        predicted(model, guide, [(x, y[:, :1], mask)])


def test_a_label_that_is_no_class_is_refused_at_a_real_token():
    model, guide = build(KEP)
    for label in (-100, TAGS):
        x, y, mask = batch(SENTENCES, label=label)
        assert TraceMeanField_ELBO()(model, guide)(x, y, mask).isfinite()
        y[0, 4] = label
        with pytest.raises(ValueError, match="labels must lie in 0"):
            TraceMeanField_ELBO()(model, guide)(x, y, mask)


@LAYERS
def test_tokens_are_the_real_ones_in_order(layer):
    model, guide = build(layer)
    whole = predicted(model, guide, [batch(SENTENCES[:2]), batch(SENTENCES[2:])], num_samples=5, keep_draws=True)
    tokens = whole.tokens()
    places = [(row, t) for row, (words, _) in enumerate(SENTENCES) for t in range(len(words))]
    assert tokens.probs.shape == (23, TAGS)
    assert torch.equal(tokens.labels, torch.cat([tags for _, tags in SENTENCES]))
    for at, (row, t) in enumerate(places):
        assert torch.equal(tokens.probs[at], whole.probs[row, t])
        assert torch.equal(tokens.draws[:, at], whole.draws[:, row, t])
        assert tokens.energy[at] == whole.energy[row, t]
        assert tokens.mutual_information[at] == whole.mutual_information[row, t]
    torch.testing.assert_close(tokens.log_prob(tokens.labels), tokens.log_probs[torch.arange(23), tokens.labels])
    assert metrics.nll(tokens.probs, tokens.labels) == pytest.approx(-tokens.log_prob(tokens.labels).mean().item())


@pytest.mark.filterwarnings("ignore:the temperature")  # of 23 tokens
def test_tokens_go_where_examples_go():
    model, guide = build(KEP)

    def predictor(data):
        return predicted(model, guide, data).tokens()

    data = [batch(SENTENCES[:3]), batch(SENTENCES[3:])]
    other = predictor([batch(sentences([6, 3], seed=1))])
    detectors = {"kl_matching", "max_softmax", "entropy", "energy", "mutual_information"}
    assert set(ood.evaluate(predictor(data), other, fitted_on=other)) == detectors
    temperature = TemperatureScaling().fit_prediction(predictor(data)).temperature
    assert (
        metrics.nll(scale(predictor(data), temperature).probs, predictor(data).labels)
        <= metrics.evaluate(predictor(data).probs, predictor(data).labels)["nll"]
    )
