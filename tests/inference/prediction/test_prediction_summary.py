"""The printed summary of a prediction, its labels and confidence, and what other kinds of prediction lack."""

import pyro.distributions as dist
import pytest
import torch

from probattn.inference import metrics
from probattn.inference.metrics import regression
from probattn.inference.prediction.aggregate import join, summarise

G = torch.Generator().manual_seed(0)


def predicted(likelihood, labels=None):
    return summarise(likelihood, labels, torch.device("cpu"), num_samples=3, keep_draws=False)


LOGITS = torch.randn(3, 200, 4, generator=G)
CLASSES = predicted(dist.Categorical(logits=LOGITS), torch.arange(200) % 4)
BINARY = predicted(dist.Bernoulli(logits=torch.randn(3, 200, 5, generator=G)).to_event(1))
NUMBERS = predicted(dist.Normal(torch.randn(3, 200, 2, generator=G), 0.5).to_event(1))
MASK = torch.arange(6) < torch.arange(1, 7)[:, None]
TOKENS = predicted(dist.Categorical(logits=torch.randn(3, 6, 6, 4)).mask(MASK).to_event(1))
KINDS = {"4 classes": CLASSES, "binary labels": BINARY, "numbers": NUMBERS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_prints_its_kind_and_means_in_one_line(kind):
    prediction = KINDS[kind]
    text = repr(prediction)
    assert text.startswith(f"Prediction of {kind} for 200 examples; means: ")
    name = "entropy" if kind == "4 classes" else "variance"
    assert f"{name} {getattr(prediction, name).mean():.3g}" in text


def test_the_printed_means_of_tokens_are_those_of_real_ones():
    assert f"confidence {TOKENS.tokens().confidence.mean():.3g}," in repr(TOKENS)


def test_predicted_and_confidence_are_those_of_the_mean_probabilities():
    probs = LOGITS.softmax(-1).mean(0)
    torch.testing.assert_close(CLASSES.confidence, probs.max(-1).values)
    assert torch.equal(CLASSES.predicted, probs.argmax(-1))
    assert torch.equal(BINARY.predicted, (BINARY.mean > 0.5).long())
    torch.testing.assert_close(BINARY.confidence, 0.5 + (BINARY.mean - 0.5).abs())
    assert torch.equal(NUMBERS.predicted, NUMBERS.mean)


def test_numbers_have_no_confidence():
    with pytest.raises(ValueError, match="no confidence"):
        _ = NUMBERS.confidence


def test_joined_batches_keep_the_number_of_samples():
    assert join([CLASSES, CLASSES]).num_samples == 3
    assert len(join([CLASSES, CLASSES])) == 400


def test_evaluate_takes_a_prediction_with_its_labels_or_with_others():
    other = (torch.arange(200) + 1) % 4
    assert metrics.evaluate(CLASSES) == metrics.evaluate(CLASSES.probs, CLASSES.labels)
    assert metrics.evaluate(CLASSES, other) == metrics.evaluate(CLASSES.probs.numpy(), other.numpy())
    y = torch.zeros(200, 2)
    assert metrics.evaluate(NUMBERS, y) == regression.evaluate(NUMBERS, y)
    with pytest.raises(ValueError, match=r"need labels"):
        metrics.evaluate(NUMBERS)
    with pytest.raises(ValueError, match=r"need labels"):
        metrics.evaluate(CLASSES.probs)
