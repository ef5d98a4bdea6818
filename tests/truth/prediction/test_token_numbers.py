"""Numbers per token: padding counts nowhere, and batches of any length give what each sequence
gives."""

import math

import pytest
import torch
from elbos import TraceMeanField_ELBO, loss_and_gradients
from token_models import batch
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, guides
from probattn.inference import metrics, posterior_predictive_check, predict
from probattn.inference.training.validation import validate
from probattn.models import Supervised
from probattn.models.likelihoods import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    Ordinal,
    PerToken,
    Poisson,
)

F64 = torch.float64
LENGTHS, TARGETS = [5, 2, 7, 1, 4, 4], 2


class Network(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 2, rank=2, merge="add")
        self.head = nn.Linear(4, outputs)

    def forward(self, x, mask=None):
        return self.head(x + self.attention(x, mask))


def build(likelihood=None, outputs=TARGETS):
    torch.manual_seed(0)
    model = Supervised(Network(outputs), PerToken(likelihood or Gaussian(0.5)), num_data=6).double()
    return model, guides.for_model(model)


def sequences(kind="numbers"):
    generator = torch.Generator().manual_seed(1)
    pairs = []
    for length in LENGTHS:
        x = torch.randn(length, 4, generator=generator, dtype=F64)
        y = torch.randn(length, TARGETS, generator=generator, dtype=F64)
        pairs.append(
            (x, {"numbers": y, "counts": y.exp().floor(), "binary": (y > 0).double()}[kind])
        )
    return pairs


def padded(kind="numbers", *, fill):
    pairs = sequences(kind)
    return [batch(pairs[:2], more=1, label=fill), batch(pairs[2:], label=fill)]


def seeded(function, *args, **options):
    torch.manual_seed(3)
    return function(*args, **options)


@pytest.mark.parametrize("fill", [1e6, math.nan])
def test_what_stands_at_padding_changes_neither_loss_nor_gradient(fill):
    variants = batch(sequences(), label=0.5), batch(sequences(), more=3, label=fill)
    assert_close(*(loss_and_gradients(TraceMeanField_ELBO(), *build(), data) for data in variants))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "kind"),
    [
        (Gaussian(0.5), 2, "numbers"),
        (HeteroscedasticGaussian(), 4, "numbers"),
        (Poisson(), 2, "counts"),
        (Bernoulli(), 2, "binary"),
    ],
)
def test_a_prediction_and_its_metrics_are_those_of_each_sequence_alone(likelihood, outputs, kind):
    model, guide = build(likelihood, outputs)
    whole = seeded(predict, model, guide, padded(kind, fill=99.0), num_samples=4)
    single = [
        seeded(predict, model, guide, [(x[None], y[None])], num_samples=4)
        for x, y in sequences(kind)
    ]
    assert whole.mask.sum(1).tolist() == LENGTHS
    for field in (whole.mean, whole.variance, whole.labels):
        assert (field[~whole.mask] == 0).all()
    log_prob = torch.cat([part.log_prob(part.labels) for part in single])
    assert_close(whole.log_prob(whole.labels.where(whole.mask[..., None], 1.0)), log_prob)
    tokens, y = whole.tokens(), torch.cat([y for _, y in sequences(kind)])
    assert torch.equal(tokens.labels, y)
    for field in ("mean", "variance"):
        expected = torch.cat([getattr(part, field)[0] for part in single])
        assert_close(getattr(tokens, field), expected)
    token_log_prob = torch.cat([part.tokens().log_prob(part.labels[0]) for part in single])
    assert_close(tokens.log_prob(y), token_log_prob)
    shares = torch.cat([part.tokens().cdf(part.labels[0]) for part in single])
    # Otherwise six standard errors of the share of 1000 samples, twice.
    assert_close(tokens.cdf(y), shares, rtol=0, atol=1e-9 if kind == "numbers" else 0.1)
    scores, name = metrics.evaluate(whole), "label_brier" if kind == "binary" else "rmse"
    error = (y - tokens.mean).square().mean().item()
    assert scores[name] == pytest.approx(error if kind == "binary" else error**0.5)
    values = seeded(validate, model, guide, padded(kind, fill=99.0), num_samples=4)
    assert values["log_prob"] == pytest.approx(log_prob.mean().item())
    assert values[name] == pytest.approx(scores[name])


def test_ordered_classes_of_tokens_are_classes_of_tokens():
    model, guide = build(Ordinal(3), 1)
    result = predict(model, guide, [(x[None], (y[None, :, 0] > 0).long()) for x, y in sequences()])
    assert result.probs.shape == (6, 7, 3)
    assert "rps" in metrics.evaluate(result)


def test_replicates_and_statistics_look_at_real_tokens_alone():
    model, guide = build()
    check, other = (
        seeded(posterior_predictive_check, model, guide, padded(fill=fill), num_replicates=30)
        for fill in (0, 1e6)
    )
    y = torch.cat([y for _, y in sequences()])
    assert check.replicated_labels.shape == (30, 6, 7, TARGETS)
    assert (check.replicated_labels[:, ~check.prediction.mask] == 0).all()
    assert_close(
        (check.observed["mean"], check.observed["std"]), (y.mean(0), y.std(0, correction=0))
    )
    assert_close(other.p_values, check.p_values, rtol=0, atol=0)
