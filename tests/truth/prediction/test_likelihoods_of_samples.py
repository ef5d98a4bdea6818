"""Likelihoods of samples that ran one after another, or of some examples, equal those of all at
once."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from probattn.inference.prediction.aggregate import PER_EXAMPLE, join, summarise
from probattn.inference.prediction.mixture import Stacked, values
from probattn.models import likelihoods

SIZES, SAMPLES = (3, 5, 2), 4
N = sum(SIZES)
MASK = torch.arange(6) < torch.tensor([6, 1, 3, 4, 2, 5, 5, 6, 1, 2])[:, None]


def user_law(outputs):
    """Laws whose parameters lack the batch shape."""
    return dist.MultivariateNormal(outputs, scale_tril=torch.tensor([[1.0, 0.0], [0.7, 0.4]]))


LIKELIHOODS = {
    "classes": (likelihoods.Categorical(), 3),
    "ordinal": (likelihoods.Ordinal(3), 1),
    "binary": (likelihoods.Bernoulli(), 2),
    "normal": (likelihoods.Gaussian(), 2),
    "student": (likelihoods.StudentT(), 2),
    "counts": (likelihoods.NegativeBinomial(), 2),
    "multivariate": (user_law, 2),
}
INDICES = [
    slice(2, 5),
    slice(None, None, 3),
    torch.arange(N) % 3 == 0,
    [9, 0, 4],
    [1, 1, 9, 1],
    np.array([7]),
    -1,
]


def summarised(laws):
    options = {"num_samples": SAMPLES, "keep_draws": True}
    return join([summarise(law, law.sample()[0], torch.device("cpu"), **options) for law in laws])


def whole(kind):
    likelihood, width = LIKELIHOODS[kind]
    return summarised(
        [likelihood(outputs) for outputs in torch.randn(SAMPLES, N, width).split(SIZES, 1)]
    )


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_an_index_selects_all_fields_and_the_laws(kind, index):
    prediction = whole(kind)
    chosen, rows = prediction[index], torch.arange(N)[index].reshape(-1)
    for name in PER_EXAMPLE:
        value, selected = getattr(prediction, name), getattr(chosen, name)
        assert selected is None if value is None else torch.equal(selected, value[rows])
    assert_close(chosen.log_prob(chosen.labels), prediction.log_prob(prediction.labels)[rows])
    assert (chosen.num_samples, chosen.ordered, chosen.is_binary) == (
        SAMPLES,
        kind == "ordinal",
        kind == "binary",
    )
    if prediction.probs is not None:
        assert torch.equal(chosen.draws, prediction.draws[:, rows])
    elif kind == "normal":
        assert_close(chosen.quantiles([0.1, 0.7]), prediction.quantiles([0.1, 0.7])[:, rows])
        assert_close(chosen.cdf(chosen.labels), prediction.cdf(prediction.labels)[rows])


def test_iteration_ends_and_wrong_indices_are_errors():
    prediction = whole("normal")
    assert len(list(prediction)) == N
    assert len(prediction[:0]) == 0
    for wrong in (N, torch.ones(N - 1, dtype=torch.bool)):
        with pytest.raises(IndexError):
            prediction[wrong]


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_samples_that_ran_one_after_another_equal_those_that_ran_at_once(kind):
    likelihood, width = LIKELIHOODS[kind]
    outputs = torch.randn(5, 4, width)
    parts, at_once = [likelihood(output) for output in outputs], likelihood(outputs)
    y = at_once.sample()[0]
    parts[0].log_prob(y)  # may keep what it has computed
    stacked = Stacked(parts)
    assert (stacked.batch_shape, stacked.event_shape) == (at_once.batch_shape, at_once.event_shape)
    assert_close(stacked.log_prob(y), at_once.log_prob(y))
    for name in ("probs", "energy") if kind in ("classes", "ordinal") else ("mean", "variance"):
        if hasattr(at_once, name):
            assert_close(values(stacked, name), values(at_once, name))
    assert stacked.sample((7,)).shape == at_once.sample((7,)).shape


@pytest.mark.parametrize(
    "likelihood", [likelihoods.Gaussian(), likelihoods.Categorical(), user_law]
)
def test_tokens_of_stacked_samples_and_of_slices_are_those_of_the_whole(likelihood):
    """Also two targets that belong together: log densities are joint, moments are each one's."""
    per_token = likelihoods.PerToken(likelihood)
    at_once, one_by_one = [], []
    for outputs, mask in zip(
        torch.randn(SAMPLES, N, 6, 2).split(SIZES, 1), MASK.split(SIZES), strict=True
    ):
        outputs, mask = outputs[:, :, : int(mask.sum(1).max())], mask[:, : int(mask.sum(1).max())]
        at_once.append(per_token(outputs, mask))
        one_by_one.append(Stacked([per_token(output, mask) for output in outputs]))
    prediction, stacked = summarised(at_once), summarised(one_by_one)
    y, all_tokens = prediction.labels, prediction.tokens()
    assert torch.equal(stacked.mask, MASK)
    assert_close(stacked.log_prob(y), prediction.log_prob(y))
    assert_close(
        stacked.tokens().log_prob(all_tokens.labels), all_tokens.log_prob(all_tokens.labels)
    )
    chosen, rows = prediction[[8, 1, 5]], torch.tensor([8, 1, 5])
    assert_close(chosen.log_prob(chosen.labels), prediction.log_prob(y)[rows])
    examples = torch.arange(N).repeat_interleave(MASK.sum(1))
    order = torch.cat([(examples == row).nonzero()[:, 0] for row in rows])
    assert torch.equal(chosen.tokens().labels, all_tokens.labels[order])
    log_prob = chosen.tokens().log_prob(all_tokens.labels[order])
    assert_close(log_prob, all_tokens.log_prob(all_tokens.labels)[order])
