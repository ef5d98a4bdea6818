"""Numbers per token, end to end: padding counts nowhere, and batches of any length give what each sequence gives."""

import math

import pytest
import torch
from elbos import TraceMeanField_ELBO
from scipy import stats
from torch import nn

from probattn import KEPSVGPAttention, draws, guides
from probattn.inference import TrainOptions, fit, metrics, posterior_predictive_check, predict
from probattn.inference.diagnostics.posterior_draws import replicate
from probattn.inference.training.validation import validate
from probattn.models import Supervised
from probattn.models.likelihoods import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    Ordinal,
    PerToken,
    Poisson,
    StudentT,
)

F64 = torch.float64
LENGTHS = [5, 2, 7, 1, 4, 4]
TARGETS = 2


class Network(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(4, 2, rank=2, merge="add"), nn.Linear(4, outputs)

    def forward(self, x, mask=None):
        return self.head(x + self.attention(x, mask))


def build(likelihood=None, outputs=TARGETS):
    torch.manual_seed(0)
    model = Supervised(Network(outputs), PerToken(likelihood or Gaussian(0.5)), num_data=6).double()
    return model, guides.for_model(model)


def sequences(kind="numbers"):
    generator = torch.Generator().manual_seed(1)
    found = []
    for length in LENGTHS:
        x = torch.randn(length, 4, generator=generator, dtype=F64)
        y = torch.randn(length, TARGETS, generator=generator, dtype=F64)
        found.append((x, {"numbers": y, "counts": y.exp().floor(), "binary": (y > 0).double()}[kind]))
    return found


def batch(given, *, more=0, fill=0.0):
    """A batch ``(x, y, mask)`` padded to the longest and that many tokens more."""
    longest = max(len(x) for x, _ in given) + more
    x, y = torch.zeros(len(given), longest, 4, dtype=F64), torch.full((len(given), longest, TARGETS), fill, dtype=F64)
    mask = torch.arange(longest) < torch.tensor([[len(each)] for each, _ in given])
    for row, (inputs, labels) in enumerate(given):
        x[row, : len(inputs)], y[row, : len(inputs)] = inputs, labels
    return x, y, mask


def padded(fill):
    given = sequences()
    return [batch(given[:2], more=1, fill=fill), batch(given[2:], fill=fill)]


def seeded(function, *args, **options):
    torch.manual_seed(3)
    return function(*args, **options)


@pytest.mark.parametrize("fill", [0.0, 1e6, math.nan])
def test_what_stands_at_padding_changes_neither_loss_nor_gradient(fill):
    results = []
    for value, more in ((0.5, 0), (fill, 3)):
        model, guide = build()
        torch.manual_seed(0)
        with draws("example"):
            loss = TraceMeanField_ELBO()(model, guide)(*batch(sequences(), more=more, fill=value))
        loss.backward()
        results.append([loss.detach(), *(each.grad for each in (*model.parameters(), *guide.parameters()))])
    torch.testing.assert_close(results[0], results[1])


def test_a_prediction_is_that_of_each_sequence_alone_and_0_at_padding():
    model, guide = build()
    whole = seeded(predict, model, guide, padded(9.0), num_samples=4)
    assert whole.mask.sum(1).tolist() == LENGTHS
    for field in (whole.mean, whole.variance, whole.labels):
        assert field.shape == (6, 7, TARGETS)
        assert (field[~whole.mask] == 0).all()
    log_prob = whole.log_prob(whole.labels)
    torch.testing.assert_close(whole.log_prob(whole.labels.where(whole.mask[..., None], 77.0)), log_prob)
    for row, (x, y) in enumerate(sequences()):
        alone = seeded(predict, model, guide, [(x[None], y[None])], num_samples=4)
        torch.testing.assert_close(whole.mean[row, : len(x)], alone.mean[0])
        torch.testing.assert_close(whole.variance[row, : len(x)], alone.variance[0])
        torch.testing.assert_close(log_prob[row], alone.log_prob(y[None])[0])
        densities = stats.norm(alone.components[0].mean[:, 0], 0.5).logpdf(y).sum((1, 2))
        assert math.isclose(log_prob[row], math.log(sum(map(math.exp, densities)) / 4), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "kind"),
    [
        (Gaussian(0.5), 2, "numbers"),
        (HeteroscedasticGaussian(), 4, "numbers"),
        (StudentT(4.0), 2, "numbers"),
        (Poisson(), 2, "counts"),
        (Bernoulli(), 2, "binary"),
    ],
)
def test_tokens_are_the_real_ones_in_order_and_have_the_metrics_of_examples(likelihood, outputs, kind):
    """Against the same tokens as sequences of their own length, one batch each: none is padded."""
    model, guide = build(likelihood, outputs)
    given = sequences(kind)
    batches = [batch(given[:2], more=1, fill=99.0), batch(given[2:], fill=99.0)]
    tokens = seeded(predict, model, guide, batches, num_samples=4).tokens()
    each = [seeded(predict, model, guide, [(x[None], y[None])], num_samples=4) for x, y in given]
    y = torch.cat([y for _, y in given])
    assert torch.equal(tokens.labels, y)
    torch.testing.assert_close(tokens.mean, torch.cat([one.mean[0] for one in each]))
    single = torch.cat([one.tokens().log_prob(one.labels[0]) for one in each])
    torch.testing.assert_close(tokens.log_prob(y), single)
    exact = isinstance(likelihood, Gaussian | HeteroscedasticGaussian)
    error = {} if exact else {"rtol": 0, "atol": 0.1}  # 6 standard errors of the share of 1000 samples, twice
    torch.testing.assert_close(tokens.cdf(y), torch.cat([one.tokens().cdf(one.labels[0]) for one in each]), **error)
    if exact:
        quantiles = torch.cat([one.tokens().quantiles([0.1, 0.8]) for one in each], 1)
        torch.testing.assert_close(tokens.quantiles([0.1, 0.8]), quantiles)
    if kind == "numbers":
        found = metrics.evaluate(seeded(predict, model, guide, batches, num_samples=4))
        error = (y - tokens.mean).square().mean().sqrt().item()
        assert found["rmse"] == pytest.approx(error)
        assert found["nll"] == pytest.approx(-single.mean().item())
    values = seeded(validate, model, guide, batches, num_samples=4)
    assert values["log_prob"] == pytest.approx(sum(one.log_prob(one.labels).item() for one in each) / 6)
    key = "label_brier" if kind == "binary" else "rmse"
    assert values[key] == pytest.approx(metrics.evaluate(tokens)[key])


def test_ordered_classes_of_tokens_are_classes_of_tokens():
    model, guide = build(Ordinal(3), 1)
    given = [(x, (y[:, 0] > 0).long()) for x, y in sequences()]
    found = predict(model, guide, [(x[None], y[None]) for x, y in given])
    assert found.probs.shape == (6, 7, 3)
    assert found.ordered
    assert "rps" in metrics.evaluate(found)


def test_replicates_and_statistics_look_at_real_tokens_alone():
    model, guide = build()
    results = []
    for fill in (0.0, 1e6):
        made = seeded(replicate, model, guide, padded(fill), num_samples=30)
        check = seeded(posterior_predictive_check, model, guide, padded(fill), num_replicates=30)
        assert made.replicated_labels.shape == (30, 6, 7, TARGETS)
        assert (made.replicated_labels[:, ~made.prediction.mask] == 0).all()
        y = torch.cat([y for _, y in sequences()])
        torch.testing.assert_close(check.observed["mean"], y.mean(0))
        torch.testing.assert_close(check.observed["std"], y.std(0, correction=0))
        results.append(check)
    for name in results[0].p_values:
        assert torch.equal(results[0].replicated[name], results[1].replicated[name])
        assert torch.equal(results[0].p_values[name], results[1].p_values[name])


def test_a_likelihood_that_counts_fewer_tokens_than_the_mask_says_which_in_replicates_too():
    class First(PerToken):
        def forward(self, outputs, mask=None):
            return super().forward(outputs, mask & (torch.arange(mask.shape[1]) < 2))

    torch.manual_seed(0)
    model = Supervised(Network(2), First(Gaussian()), num_data=6).double()
    guide = guides.for_model(model)
    made = replicate(model, guide, padded(0.0), num_samples=3)
    assert made.prediction.mask.sum(1).tolist() == [min(2, length) for length in LENGTHS]
    assert ((made.replicated_labels != 0).all(0)[..., 0] == made.prediction.mask).all()


def test_training_on_padded_sequences_finds_the_noise():
    torch.manual_seed(0)
    model = Supervised(Network(1), PerToken(Gaussian(1.0)), num_data=40)
    guide = guides.for_model(model)
    x, mask = torch.randn(40, 6, 4), torch.arange(6) < torch.randint(1, 7, (40, 1))
    y = (x[..., :1] + 0.2 * torch.randn(40, 6, 1)).where(mask[..., None], 1e3)
    data = list(zip(x.split(20), y.split(20), mask.split(20), strict=True))
    history = fit(model, guide, data, data, options=TrainOptions(epochs=60, lr=0.06, monitor="crps"), progress=False)
    assert history.best_value == history.epochs[history.best_epoch - 1]["valid/crps"]
    assert model.likelihood.likelihood.log_scale.exp().item() == pytest.approx(0.2, rel=0.35)
    assert history.epochs[-1]["valid/rmse"] < 0.3
