"""A prediction of some examples equals the same rows of the whole, with all fields and laws."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from probattn.inference.prediction.aggregate import PER_EXAMPLE, join, summarise
from probattn.inference.prediction.mixture import Selected, Stacked
from probattn.models import likelihoods

SIZES, SAMPLES = (3, 5, 2), 4
N = sum(SIZES)
MASK = torch.arange(6) < torch.tensor([6, 1, 3, 4, 2, 5, 5, 6, 1, 2])[:, None]


def user_law(outputs):
    """Laws whose parameters lack the batch shape."""
    return dist.MultivariateNormal(outputs, scale_tril=torch.tensor([[1.0, 0.0], [0.7, 0.4]]))


LIKELIHOODS = {
    "classes": (likelihoods.Categorical(), 3, lambda law: law.sample()[0]),
    "ordinal": (likelihoods.Ordinal(3), 1, lambda law: law.sample()[0]),
    "binary": (likelihoods.Bernoulli(), 2, lambda law: law.sample()[0]),
    "normal": (likelihoods.Gaussian(), 2, lambda law: law.sample()[0]),
    "student": (likelihoods.StudentT(), 2, lambda law: law.sample()[0]),
    "counts": (likelihoods.NegativeBinomial(), 2, lambda law: law.sample()[0]),
    "multivariate": (user_law, 2, lambda law: law.sample()[0]),
}
INDICES = [slice(2, 5), slice(None, None, 3), torch.arange(N) % 3 == 0, torch.tensor([9, 0, 4]), [1, 8], np.array([7])]


def whole(kind):
    torch.manual_seed(0)
    likelihood, width, sample = LIKELIHOODS[kind]
    parts = []
    for outputs in torch.randn(SAMPLES, N, width).split(SIZES, 1):
        law = likelihood(outputs)
        options = {"num_samples": SAMPLES, "keep_draws": True}
        parts.append(summarise(law, sample(law), torch.device("cpu"), **options))
    return join(parts)


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_an_index_selects_all_fields_and_the_laws(kind, index):
    prediction = whole(kind)
    chosen = prediction[index]
    for name in PER_EXAMPLE:
        value, selected = getattr(prediction, name), getattr(chosen, name)
        assert selected is None if value is None else torch.equal(selected, value[index])
    assert_close(chosen.log_prob(chosen.labels), prediction.log_prob(prediction.labels)[index])
    assert (chosen.num_samples, chosen.ordered, chosen.is_binary) == (SAMPLES, kind == "ordinal", kind == "binary")
    if prediction.probs is not None:
        assert torch.equal(chosen.draws, prediction.draws[:, index])
        assert torch.equal(chosen.mutual_information, prediction.mutual_information[index])
    elif kind == "normal":
        assert_close(chosen.quantiles([0.1, 0.7]), prediction.quantiles([0.1, 0.7])[:, index])
        assert_close(chosen.cdf(chosen.labels), prediction.cdf(prediction.labels)[index])


def test_an_int_gives_a_prediction_of_one_example_and_iteration_ends():
    prediction = whole("normal")
    assert len(prediction[-1]) == 1
    assert torch.equal(prediction[-1].mean, prediction.mean[-1:])
    assert torch.equal(prediction[np.int64(2)].mean, prediction[torch.tensor(2)].mean)
    assert len(list(prediction)) == N
    assert len(prediction[:0]) == 0
    for wrong in (N, torch.ones(N - 1, dtype=torch.bool)):
        with pytest.raises(IndexError):
            prediction[wrong]


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_an_example_may_be_selected_twice_and_have_two_labels(kind):
    prediction, index = whole(kind), torch.tensor([3, 3, 0, 3])
    assert_close(prediction[index].log_prob(prediction.labels[index]), prediction.log_prob(prediction.labels)[index])
    labels = prediction.labels.clone()
    labels[3] = prediction.labels[0]
    mixed = prediction.labels[[3, 0, 0, 3]]
    expected = prediction.log_prob(prediction.labels)[index]
    expected[1] = prediction.log_prob(labels)[3]
    assert_close(prediction[index].log_prob(mixed), expected)


def test_selected_examples_are_joined_like_others():
    prediction = whole("normal")
    joined = join([prediction[[4, 1]], prediction])
    assert_close(joined.log_prob(joined.labels)[:2], prediction.log_prob(prediction.labels)[[4, 1]])


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(), likelihoods.Categorical(), user_law])
def test_slices_of_padded_tokens_have_the_tokens_of_the_whole(likelihood):
    torch.manual_seed(0)
    parts = []
    for outputs, mask in zip(torch.randn(SAMPLES, N, 6, 2).split(SIZES, 1), MASK.split(SIZES), strict=True):
        outputs, mask = outputs[:, :, : int(mask.sum(1).max())], mask[:, : int(mask.sum(1).max())]
        law = likelihoods.PerToken(likelihood)(outputs, mask)
        options = {"num_samples": SAMPLES, "keep_draws": False}
        parts.append(summarise(law, law.sample()[0], torch.device("cpu"), **options))
    prediction = join(parts)
    chosen, rows = prediction[[8, 1, 5]], torch.tensor([8, 1, 5])
    assert_close(chosen.log_prob(chosen.labels), prediction.log_prob(prediction.labels)[rows])
    tokens, all_tokens = chosen.tokens(), prediction.tokens()
    examples = torch.arange(N).repeat_interleave(MASK.sum(1))
    order = torch.cat([(examples == row).nonzero()[:, 0] for row in rows])
    assert torch.equal(tokens.labels, all_tokens.labels[order])
    assert_close(tokens.log_prob(tokens.labels), all_tokens.log_prob(all_tokens.labels)[order])


@pytest.mark.parametrize("stacked", [False, True])
def test_laws_with_transforms_have_rows(stacked):
    loc, y, index = torch.randn(3, 5), torch.rand(5), torch.tensor([4, 1])
    laws = [dist.TransformedDistribution(dist.Normal(m, 1.0), [dist.transforms.ExpTransform()]) for m in loc]
    law = (
        Stacked(laws)
        if stacked
        else dist.TransformedDistribution(dist.Normal(loc, 1.0), [dist.transforms.AffineTransform(loc, 2.0)])
    )
    assert_close(Selected(law, (index,)).log_prob(y[index]), law.log_prob(y)[:, index])
