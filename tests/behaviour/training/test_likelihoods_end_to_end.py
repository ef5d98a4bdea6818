"""Likelihoods on data of known distribution: fit, predict, metrics and predictive checks."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, fit, metrics, posterior_predictive_check, predict
from probattn.models import Supervised
from probattn.models.likelihoods import Gaussian, NegativeBinomial, StudentT

N = 600


class Network(nn.Module):
    """A linear map of the mean token plus a small attention layer."""

    def __init__(self):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 2, rank=2, merge="add")
        self.head = nn.Linear(4, 2)

    def forward(self, x, mask=None):
        return self.head(x.mean(-2) + 0.1 * self.attention(x, mask).mean(-2))


CASES = {  # the true distribution, the likelihood, and a learned parameter with its true value
    "student": (
        lambda f: dist.StudentT(3.0, f, 0.3).to_event(1),
        lambda: StudentT(4.0, learn_df=True),
        lambda likelihood: likelihood.log_scale.exp().item() / 0.3,
    ),
    "negative": (
        lambda f: dist.NegativeBinomial(2.0, logits=f + 1 - math.log(2)).to_event(1),
        lambda: NegativeBinomial(1.5),
        lambda likelihood: likelihood.concentration.item() / 2,
    ),
}


def trained(case, likelihood=None):
    """Model, guide, data of training and test, and the true distribution of the last labels."""
    make, right, _ = CASES[case]
    data = []
    torch.manual_seed(1)
    for seed in (1, 2):
        x = torch.randn(N, 2, 4, generator=torch.Generator().manual_seed(seed))
        truth = make(x.mean(1) @ torch.tensor([[1.0, 0.3], [-0.5, 1.0], [0.0, 0.5], [0.5, 0.0]]))
        data.append(list(zip(x.split(100), truth.sample().split(100), strict=True)))
    model = Supervised(Network(), (likelihood or right)(), num_data=N)
    guide = guides.for_model(model)
    options = TrainOptions(epochs=20, lr=0.05)
    fit(model, guide, data[0], options=options, progress=False)
    return model, guide, data, truth


@pytest.mark.parametrize("case", ["negative", pytest.param("student", marks=pytest.mark.slow)])
def test_numbers_are_learned_and_predicted_close_to_the_truth(case):
    model, guide, (_, data), truth = trained(case)
    prediction = predict(model, guide, data, num_samples=10)
    assert CASES[case][2](model.likelihood) == pytest.approx(1, rel=0.25)
    best = truth.log_prob(prediction.labels).mean().item()
    assert best - 0.08 < prediction.log_prob(prediction.labels).mean().item() < best + 0.03
    scores = metrics.evaluate(prediction)
    assert all(map(math.isfinite, scores.values()))
    assert scores["pit_error"] < 0.04
    if case == "student":  # intervals of whole numbers cover more
        assert scores["coverage_90"] == pytest.approx(0.9, abs=0.05)
    check = posterior_predictive_check(model, guide, data, num_replicates=100)
    for name, p in check.p_values.items():
        assert ((p > 0.0025) & (p < 0.9975)).all(), name


def test_a_wrong_likelihood_fails_its_check_and_scores_worse():
    largest, results = {"largest": lambda y, p: (y - p.mean).abs().max()}, []
    for likelihood in (None, Gaussian):
        model, guide, (data, _), _ = trained("student", likelihood)
        check = posterior_predictive_check(
            model, guide, data, statistics=largest, num_replicates=200
        )
        prediction = predict(model, guide, data)
        results.append(
            (check.p_values["largest"].item(), prediction.log_prob(prediction.labels).mean().item())
        )
    assert results[1][0] < 0.01 < results[0][0] < 0.99
    assert results[0][1] > results[1][1] + 0.03
