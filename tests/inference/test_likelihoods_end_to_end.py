"""Each likelihood on data of known distribution: fit, predict, metrics, intervals and predictive checks."""

import math

import pyro.distributions as dist
import pytest
import torch
from fitted_methods import intervals
from torch import nn
from torch.distributions.transforms import SigmoidTransform

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, conformal, fit, metrics, posterior_predictive_check, predict
from probattn.inference.diagnostics.predictive_check import REGRESSION
from probattn.inference.metrics import regression
from probattn.models import Supervised
from probattn.models.likelihoods import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)

N, EPOCHS = 600, 20


class Network(nn.Module):
    """A linear map of the mean token plus a small attention layer."""

    def __init__(self, outputs):
        super().__init__()
        self.attention, self.head = KEPSVGPAttention(4, 2, rank=2, merge="add"), nn.Linear(4, outputs)

    def forward(self, x, mask=None):
        return self.head(x.mean(-2) + 0.1 * self.attention(x, mask).mean(-2))


def inputs(seed, n=N):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, 4, generator=generator)
    f = x.mean(1) @ torch.tensor([[1.0, 0.3], [-0.5, 1.0], [0.0, 0.5], [0.5, 0.0]])
    return x, f


def true_distribution(kind, f):
    """Distribution of the labels given the two functions of the inputs."""
    first = f[:, :1]
    ends = torch.full((len(f), 1), -math.inf), torch.full((len(f), 1), math.inf)
    cutpoints = torch.cat([ends[0], torch.tensor([-1.0, 1.5]) - 2 * first, ends[1]], 1)
    return {
        "gaussian": lambda: dist.Normal(f, 0.3).to_event(1),
        "heteroscedastic": lambda: dist.Normal(first, (1.5 * f[:, 1:] - 0.5).exp().log1p()).to_event(1),
        "student": lambda: dist.StudentT(3.0, f, 0.3).to_event(1),
        "bernoulli": lambda: dist.Bernoulli(logits=3 * f).to_event(1),
        "poisson": lambda: dist.Poisson((f + 1).exp()).to_event(1),
        "negative": lambda: dist.NegativeBinomial(2.0, logits=f + 1 - math.log(2)).to_event(1),
        "ordinal": lambda: dist.Categorical(probs=cutpoints.sigmoid().diff(dim=1)),
    }[kind]()


LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(), 2, lambda found: found.log_scale.exp().item(), 0.3),
    "heteroscedastic": (lambda: HeteroscedasticGaussian(), 2, None, None),
    "student": (lambda: StudentT(4.0, learn_df=True), 2, lambda found: found.log_scale.exp().item(), 0.3),
    "bernoulli": (lambda: Bernoulli(), 2, None, None),
    "poisson": (lambda: Poisson(), 2, None, None),
    "negative": (lambda: NegativeBinomial(1.5), 2, lambda found: found.concentration.item(), 2.0),
    "ordinal": (lambda: Ordinal(3), 1, lambda found: found.cutpoints.diff().item(), 2.5),
}
NUMBERS = ("gaussian", "heteroscedastic", "student", "poisson", "negative")


def batches(x, y, size=100):
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ("student", "negative", "ordinal")))
        for kind in LIKELIHOODS
    ],
)
def trained(request):
    kind = request.param
    make, outputs, *_ = LIKELIHOODS[kind]
    torch.manual_seed(1)
    (x, f), (x_test, f_test) = inputs(1), inputs(2)
    y, y_test = true_distribution(kind, f).sample(), true_distribution(kind, f_test).sample()
    model = Supervised(Network(outputs), make(), num_data=N)
    guide = guides.for_model(model)
    monitor = "rps" if kind == "ordinal" else "label_nll" if kind == "bernoulli" else "crps"
    data = batches(x, y), batches(x_test, y_test)
    history = fit(
        model,
        guide,
        *data,
        options=TrainOptions(epochs=EPOCHS, lr=0.05, monitor=monitor, num_samples=2),
        progress=False,
    )
    torch.manual_seed(3)
    prediction = predict(model, guide, data[1], num_samples=10)
    return kind, model, guide, history, prediction, true_distribution(kind, f_test), data[1]


def test_learned_parameters_are_the_true_ones(trained):
    kind, model, _, history, *_ = trained
    *_, learned, truth = LIKELIHOODS[kind]
    assert len(history.epochs) == EPOCHS
    assert history.best_value == min(epoch[f"valid/{MONITOR.get(kind, 'crps')}"] for epoch in history.epochs)
    if truth is not None:
        assert learned(model.likelihood) == pytest.approx(truth, rel=0.25)


MONITOR = {"ordinal": "rps", "bernoulli": "label_nll"}


def test_log_score_is_close_to_the_true_distributions(trained):
    _, _, _, history, prediction, truth, _ = trained
    best, found = truth.log_prob(prediction.labels).mean().item(), prediction.log_prob(prediction.labels).mean().item()
    assert best - 0.08 < found < best + 0.03
    logged = history.epochs[history.best_epoch - 1]["valid/log_prob"]
    assert logged == pytest.approx(found, abs=0.03)


def test_metrics_are_close_to_the_true_distributions(trained):
    kind, _, _, _, prediction, truth, _ = trained
    y, found = prediction.labels, metrics.evaluate(prediction)
    if kind == "ordinal":
        assert found["rps"] == pytest.approx(metrics.rps(truth.probs, y), abs=0.01)
        assert found["accuracy"] == pytest.approx(metrics.accuracy(truth.probs, y), abs=0.03)
        return
    if kind == "bernoulli":
        exact = metrics.label_metrics(truth.mean, y)
        for name, value in exact.items():
            assert found[name] == pytest.approx(value, abs=0.03)
        return
    components = (truth.expand((1, *truth.batch_shape)),)
    ideal = type(prediction)(mean=truth.mean, variance=truth.variance, components=components)
    exact = regression.evaluate(ideal, y)
    for name in ("rmse", "mae", "crps", "width_50", "width_90"):
        assert found[name] == pytest.approx(exact[name], rel=0.1), name
    for name in ("coverage_50", "coverage_90"):
        assert found[name] == pytest.approx(exact[name], abs=0.05), name
    assert found["pit_error"] < 0.04


def test_predictive_checks_accept_the_trained_model(trained):
    """All default statistics exist for all likelihoods, and none is extreme."""
    _, model, guide, _, _, _, data = trained
    torch.manual_seed(4)
    check = posterior_predictive_check(model, guide, data, num_replicates=100)
    for name, p in check.p_values.items():
        assert ((p > 0.0025) & (p < 0.9975)).all(), name


def test_conformal_intervals_of_the_trained_model_cover(trained):
    kind, model, guide, *_ = trained
    if kind not in NUMBERS:
        return
    (x, f), (x_new, f_new) = inputs(5, 1000), inputs(6, 1000)
    torch.manual_seed(5)
    known, new = (
        predict(model, guide, [(a, true_distribution(kind, b).sample())]) for a, b in ((x, f), (x_new, f_new))
    )
    for method in (conformal.Normalised, conformal.CQR):
        found = method(alpha=0.1).fit_prediction(known).evaluate(new, new.labels)
        assert 0.86 < found["coverage"] < (0.97 if kind in ("poisson", "negative") else 0.94)


WRONG = {
    "student": (Gaussian, lambda y, p: (y - p.mean).abs().max()),
    "negative": (Poisson, lambda y, p: ((y - p.mean).square() / p.mean).mean()),
    "heteroscedastic": (Gaussian, lambda y, p: (y - p.mean).pow(4).mean() / (y - p.mean).square().mean() ** 2),
}


def test_a_wrong_likelihood_fails_its_check_and_scores_worse(trained):
    kind, right, right_guide, *_ = trained
    if kind not in WRONG:
        return
    wrong, statistic = WRONG[kind]
    torch.manual_seed(1)
    x, f = inputs(1)
    y = true_distribution(kind, f).sample()  # what the right model was trained on
    data = batches(x, y)
    model = Supervised(Network(y.shape[1]), wrong(), num_data=N)
    guide = guides.for_model(model)
    fit(model, guide, data, options=TrainOptions(epochs=EPOCHS, lr=0.05), progress=False)
    found = {}
    for name, pair in (("right", (right, right_guide)), ("wrong", (model, guide))):
        check = posterior_predictive_check(*pair, data, statistics={"t": statistic}, num_replicates=200)
        found[name] = check.p_values["t"].item(), predict(*pair, data).log_prob(y).mean().item()
    assert 0.02 < found["right"][0] < 0.98
    assert found["wrong"][0] < 0.01
    assert found["right"][1] > found["wrong"][1] + 0.03


# --- User-defined likelihoods, with and without a mean


class UserDefined(nn.Module):
    """Any distribution as a likelihood."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, outputs, mask=None):
        return self.make(outputs)


USER_DEFINED = {
    "cauchy": (lambda f: dist.Cauchy(f, 0.3).to_event(1), False),
    "student": (lambda f: dist.StudentT(0.8, f, 0.3).to_event(1), False),
    "logit-normal": (
        lambda f: dist.TransformedDistribution(dist.Normal(f, 0.5), [SigmoidTransform()]).to_event(1),
        False,
    ),
    "laplace": (lambda f: dist.Laplace(f, 0.3).to_event(1), True),
    "gamma": (lambda f: dist.Gamma(2.0, (-f).exp()).to_event(1), True),
    "low-rank": (lambda f: dist.LowRankMultivariateNormal(f, f.new_full((2, 1), 0.3), f.new_full((2,), 0.1)), True),
}


SLOW = ("student", "laplace", "logit-normal", "gamma")  # their properties are also those of others


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in USER_DEFINED]
)
def test_user_defined_likelihoods_from_training_to_checks(name):
    make, has_mean = USER_DEFINED[name]
    torch.manual_seed(1)
    (x, f), (x_test, f_test) = inputs(1), inputs(2)
    y, y_test = make(f).sample(), make(f_test).sample()
    model = Supervised(Network(2), UserDefined(make), num_data=N)
    guide = guides.for_model(model)
    fit(model, guide, batches(x, y), options=TrainOptions(epochs=15, lr=0.05), progress=False)
    prediction = predict(model, guide, batches(x_test, y_test), num_samples=8)
    best = make(f_test).log_prob(y_test).mean().item()
    assert best - 0.06 < prediction.log_prob(y_test).mean().item() < best + 0.03
    assert prediction.mean.isfinite().all() == prediction.variance.isfinite().all() == has_mean
    found = metrics.evaluate(prediction)
    assert {key for key, value in found.items() if math.isnan(value)} == (set() if has_mean else {"rmse", "crps"})
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.05)
    assert found["pit_error"] < 0.04
    low, middle, high = prediction.quantiles([0.1, 0.5, 0.9])
    torch.testing.assert_close(middle, prediction.median, rtol=1e-6, atol=1e-6)
    assert (low < middle).all()
    assert (middle < high).all()
    calibrated = intervals(conformal.CQR, prediction, y_test, alpha=0.1)
    assert calibrated.evaluate(prediction, y_test)["coverage"] >= 0.9
    check = posterior_predictive_check(
        model,
        guide,
        batches(x_test, y_test),
        statistics={"below": lambda y, p: (y < p.median).double().mean()},
        num_replicates=300,
    )
    assert 0.005 < check.p_values["below"] < 0.995
    if not has_mean:
        assert intervals(conformal.Normalised, prediction, y_test, alpha=0.1).quantile.isnan().all()
        options = {"statistics": {"rmse": REGRESSION["rmse"]}, "num_replicates": 3}
        with pytest.raises(ValueError, match="'rmse' is NaN"):
            posterior_predictive_check(model, guide, batches(x_test, y_test), **options)


def test_mixture_of_gaussians():
    """A mixture likelihood, whose mean and distribution function PyTorch implements."""
    torch.manual_seed(0)
    x, f = inputs(1)

    def make(outputs):
        parts = dist.Normal(torch.stack([outputs, outputs + 3], -1), 0.2)
        return dist.MixtureSameFamily(dist.Categorical(torch.ones(*outputs.shape, 2)), parts).to_event(1)

    y = make(f).sample()
    model = Supervised(Network(2), UserDefined(make), num_data=N)
    guide = guides.for_model(model)
    fit(model, guide, batches(x, y), options=TrainOptions(epochs=15, lr=0.05), progress=False)
    found = metrics.evaluate(predict(model, guide, batches(x, y)))
    assert found["pit_error"] < 0.04
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.05)
    assert found["rmse"] == pytest.approx((1.5**2 + 0.2**2) ** 0.5, rel=0.05)
