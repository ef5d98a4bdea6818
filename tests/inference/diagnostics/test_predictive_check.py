"""Predictive checks: closed forms, and uniform ranks of data that come from the model."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule
from scipy import stats
from torch import nn
from torch.distributions import transform_to

from probattn import KEPSVGPAttention, guides, local_sites, priors
from probattn.inference import metrics, predict
from probattn.inference.diagnostics.predictive_check import p_value, posterior_predictive_check, prior_predictive_check
from probattn.models import Supervised
from probattn.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
    TokenCategorical,
)

F64 = torch.float64


class Network(PyroModule):
    def __init__(self, *, outputs=3, gain=1.0, prior=None, pool=True):
        super().__init__()
        self.layer = KEPSVGPAttention(4, 2, rank=2, prior=prior)
        self.head = nn.Linear(4, outputs)
        self.gain, self.pool = gain, pool

    def forward(self, x, mask=None):
        x = self.layer(x, mask)
        return self.gain * self.head(x.mean(-2) if self.pool else x)


def build(likelihood=None, **options):
    model = Supervised(Network(**options), likelihood or Categorical(), num_data=20).double()
    return model, guides.for_model(model)


def data(n=12, likelihood=Categorical):
    x = torch.randn(n, 5, 4, dtype=F64)
    if likelihood is Gaussian:
        return x, torch.randn(n, 2, dtype=F64)
    if likelihood is Bernoulli:
        return x, torch.randint(2, (n, 3)).double()
    return x, torch.randint(3, (n, 5) if likelihood is TokenCategorical else (n,))


def batches(*tensors, size=7):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def test_p_values_by_hand():
    replicated = torch.tensor([1.0, 2.0, 2.0, 3.0], dtype=F64)
    expected = {0.0: 4.5 / 5, 1.0: 4 / 5, 2.0: 2.5 / 5, 2.5: 1.5 / 5, 3.0: 1 / 5, 4.0: 0.5 / 5}
    for observed, p in expected.items():
        assert math.isclose(p_value(torch.tensor(observed, dtype=F64), replicated), p)
        assert math.isclose(p_value(torch.tensor(-observed, dtype=F64), -replicated), 1 - p)
    both = p_value(torch.tensor([2.0, 4.0]), torch.stack((replicated, replicated), dim=1))
    torch.testing.assert_close(both, torch.tensor([0.5, 0.1], dtype=F64))


def test_p_values_of_exchangeable_values_have_mean_one_half_ties_or_not():
    """Exactly: each of the R + 1 values as the observed one in turn."""
    for values in (torch.tensor([1.0, 2.0, 5.0, 9.0]), torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0]), torch.ones(3)):
        turns = [p_value(values[i], torch.cat((values[:i], values[i + 1 :]))) for i in range(len(values))]
        assert math.isclose(sum(turns) / len(values), 0.5, rel_tol=1e-12)


def test_every_default_statistic_of_every_replicate_is_the_metric_of_the_mean_prediction():
    model, guide = build(gain=20.0)
    x, y = data()
    check = posterior_predictive_check(model, guide, batches(x, y), num_replicates=30)
    probs = check.prediction.probs
    for labels, at in [(y, None), *((labels, r) for r, labels in enumerate(check.replicated_labels))]:
        share = [(labels == c).double().mean().item() for c in range(3)]
        expected = {
            "accuracy": (probs.argmax(-1) == labels).double().mean().item(),
            "class_frequencies": share,
            "ece": metrics.ece(probs, labels),
            "entropy": -sum(p * math.log(p) for p in share if p),
        }
        values = check.observed if at is None else {name: t[at] for name, t in check.replicated.items()}
        assert list(values) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(values[name], torch.tensor(value, dtype=F64))
    for name, t in check.observed.items():
        assert torch.equal(check.p_values[name], p_value(t, check.replicated[name]))
        p = check.p_values[name]
        torch.testing.assert_close(check.two_sided[name], torch.where(p < 0.5, 2 * p, 2 - 2 * p))


def test_the_prediction_given_to_statistics_is_one_object_for_data_and_replicates():
    model, guide = build()
    seen = []

    def spy(labels, prediction):
        seen.append((labels, prediction))
        return float(labels[0])

    x, y = data()
    check = posterior_predictive_check(model, guide, [(x, y)], statistics=[spy], num_replicates=5)
    assert {id(prediction) for _, prediction in seen} == {id(check.prediction)}
    assert torch.equal(seen[0][0], y)
    torch.testing.assert_close(torch.stack([labels for labels, _ in seen[1:]]), check.replicated_labels)
    torch.manual_seed(1)
    drawn = predict(model, guide, x, num_samples=5, keep_draws=True)
    torch.manual_seed(1)
    check = posterior_predictive_check(model, guide, [(x, y)], num_replicates=5)
    torch.testing.assert_close(check.prediction.probs, drawn.draws.mean(0))
    by_hand = drawn.draws.gather(-1, y.expand(5, 12)[..., None])[..., 0].log()
    torch.testing.assert_close(check.log_likelihood, by_hand)


def conjugate(noise=0.5):
    """A model y = b + A v + noise with v = the two scalars of u that matter, and a guide at its exact posterior.

    Weights of the layer's output are such that the second column of u reaches nothing.
    """
    torch.manual_seed(4)
    layer = KEPSVGPAttention(2, 1, rank=2)
    head = nn.Linear(2, 1)

    class Mean(PyroModule):
        def __init__(self):
            super().__init__()
            self.layer, self.head = layer, head

        def forward(self, x):
            return 6 * self.head(self.layer(x).mean(-2))

    model = Supervised(Mean(), Gaussian(noise), num_data=8).double()
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        head.weight.copy_(torch.tensor([[1.0, 0.0]]))
        layer.scale_unconstrained.copy_(torch.tensor([[0.3, -0.4]]))
    model.eval()
    x = 2 * torch.randn(8, 4, 2, dtype=F64)
    lam = torch.tensor([0.3, -0.4], dtype=F64).exp()

    def mean(v):
        u = torch.stack((v, torch.zeros_like(v)))[None]
        with torch.no_grad():
            return poutine.condition(model.network, data={"network.layer.u": u})(x)[:, 0]

    b = mean(torch.zeros(2, dtype=F64))
    a = torch.stack([mean(unit) - b for unit in torch.eye(2, dtype=F64)], dim=1)
    y = b + a @ (lam * torch.randn(2, dtype=F64)) + noise * torch.randn(8, dtype=F64)
    cov = torch.linalg.inv(torch.diag(lam**-2) + a.T @ a / noise**2)
    loc = cov @ a.T @ (y - b) / noise**2
    guide = guides.for_model(model)
    q = guide.network.layer.u
    with torch.no_grad():
        q.loc[0, 0] = loc
        tril = torch.linalg.cholesky(cov)
        q.raw_tril[0, 0] = transform_to(constraints.softplus_lower_cholesky).inv(tril)
    return model, guide, x, y, b, a, lam, loc, cov


def linear(weights):
    return lambda labels, prediction: labels[:, 0] @ weights


@pytest.mark.parametrize("prior", [False, True])
def test_conjugate_model_has_the_p_values_of_its_gaussian_predictive(prior):
    """T = wᵀ y ~ N(wᵀ(b + A m), wᵀ(A S Aᵀ + σ² I) w): replicates of one draw are correlated over examples."""
    model, guide, x, y, b, a, lam, loc, cov = conjugate()
    weights = {"one": torch.eye(8, dtype=F64)[3], "sum": torch.ones(8, dtype=F64), "along": a[:, 0]}
    statistics = {name: linear(w) for name, w in weights.items()}
    check = posterior_predictive_check(
        model, None if prior else guide, batches(x, y[:, None]), statistics=statistics, num_replicates=4000
    )
    mean, spread = (b, torch.diag(lam**2)) if prior else (b + a @ loc, cov)
    total = a @ spread @ a.T + 0.25 * torch.eye(8, dtype=F64)
    for name, w in weights.items():
        law = stats.norm(float(w @ mean), float(w @ total @ w) ** 0.5)
        assert stats.kstest(check.replicated[name], law.cdf).pvalue > 0.001
        p = law.sf(float(w @ y))
        assert 0.001 < p < 0.999
        assert abs(check.p_values[name] - p) < 4 * (p * (1 - p) / 4000) ** 0.5
    independent = float(weights["along"] @ torch.diag(total.diag()) @ weights["along"]) ** 0.5
    law = stats.norm(float(weights["along"] @ mean), independent)
    assert stats.kstest(check.replicated["along"], law.cdf).pvalue < 1e-6


def agreement(labels, prediction):
    """Large where examples agree, in class or in number: nearly the same inputs share one draw of u."""
    return labels.mean().abs() if labels.is_floating_point() else labels.bincount(minlength=3).square().sum()


def ranks(x, truth, model, simulations, replicates=39):
    """Ranks of data that ``truth`` draws among replicates of ``model``, ties broken by chance; and their p-values."""
    found, p_values = [], []
    for _ in range(simulations):
        with torch.no_grad():
            y = truth(x)  # the program itself, under no handler
        check = prior_predictive_check(model, [(x, y)], statistics=[agreement], num_replicates=replicates)
        observed, replicated = check.observed["agreement"], check.replicated["agreement"]
        ties = int((replicated == observed).sum())
        found.append(int((replicated > observed).sum()) + int(torch.randint(ties + 1, ())))
        p_values.append(check.p_values["agreement"])
    return torch.tensor(found), torch.stack(p_values)


def uniformity(found, levels=40, bins=8):
    """p-value of χ² of the ranks: the same number is expected in every bin, exactly."""
    return stats.chisquare(found.bincount(minlength=levels).reshape(bins, -1).sum(1).numpy()).pvalue


@pytest.mark.parametrize("likelihood", [Categorical, Gaussian])
def test_data_from_the_model_itself_have_uniform_p_values_and_from_another_prior_not(likelihood):
    """With many ties between classes, and with none between numbers, whose p-values are uniform as they are."""
    x = torch.randn(5, 4, dtype=F64) + 0.05 * torch.randn(12, 5, 4, dtype=F64)
    options = {"outputs": 3 if likelihood is Categorical else 1}
    model, _ = build(likelihood(), **options)
    model.eval()
    with torch.no_grad():
        model.network.layer.out.bias.zero_()
        model.network.head.bias.zero_()
        outputs = torch.stack([model.network(x) for _ in range(100)])
        if likelihood is Categorical:
            outputs -= outputs.mean(-1, keepdim=True)
    options["gain"] = model.network.gain = 1 / outputs.std(0).mean().item()
    found, p_values = ranks(x, model, model, simulations=240)
    assert uniformity(found) > 0.01
    assert abs(p_values.mean() - 0.5) < 3 * p_values.std() / 240**0.5
    if likelihood is Gaussian:
        assert stats.kstest(p_values, "uniform").pvalue > 0.01
        assert math.isclose(p_values.std(), 12**-0.5, rel_tol=0.1)
    for factor in (0.25, 4.0):
        wrong, _ = build(likelihood(), prior=lambda scale, factor=factor: priors.normal(factor * scale), **options)
        wrong.load_state_dict(model.state_dict())
        assert uniformity(ranks(x, model, wrong, simulations=80)[0]) < 1e-6


def test_a_model_that_does_not_fit_is_found_out():
    """Sure of class 0 where all labels are 1, and scattered far more than its noise."""
    model, guide = build()
    with torch.no_grad():
        model.network.head.bias.copy_(torch.tensor([6.0, 0.0, 0.0]))
    x, _ = data()
    check = posterior_predictive_check(model, guide, [(x, torch.ones(12, dtype=torch.long))], num_replicates=99)
    assert check.p_values["accuracy"] > 0.99
    torch.testing.assert_close(check.p_values["class_frequencies"][:2], torch.tensor([0.995, 0.005], dtype=F64))
    assert check.two_sided["ece"] < 0.02
    model, guide = build(Gaussian(0.1), outputs=2)
    check = posterior_predictive_check(model, guide, [data(likelihood=Gaussian)], num_replicates=99)
    assert (check.p_values["std"] < 0.01).all()
    assert (check.p_values["rmse"] < 0.01).all()


def test_p_values_do_not_depend_on_how_the_data_are_batched():
    model, guide = build(gain=20.0)
    x, y = data()
    results = []
    for size in (12, 4):
        torch.manual_seed(2)
        check = posterior_predictive_check(
            model, guide, batches(x, y, size=size), statistics=[agreement], num_replicates=400
        )
        results.append(check)
    torch.testing.assert_close(results[0].prediction.probs, results[1].prediction.probs)
    assert abs(results[0].p_values["agreement"] - results[1].p_values["agreement"]) < 0.1


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli])
def test_labels_that_are_no_classes_have_statistics_of_numbers(likelihood):
    model, guide = build(likelihood(), outputs=2 if likelihood is Gaussian else 3)
    x, y = data(likelihood=likelihood)
    check = posterior_predictive_check(model, guide, batches(x, y), num_replicates=6)
    for labels, at in [(y, None), *((labels, r) for r, labels in enumerate(check.replicated_labels))]:
        for target in range(y.shape[1]):
            column = labels[:, target]
            center = sum(column) / 12
            expected = {
                "mean": center,
                "std": (sum((column - center) ** 2) / 12).sqrt(),
                "rmse": (sum((column - check.prediction.mean[:, target]) ** 2) / 12).sqrt(),
            }
            for name, value in expected.items():
                found = check.observed[name] if at is None else check.replicated[name][at]
                torch.testing.assert_close(found[target], value)


def test_tokens_count_as_examples_and_padding_not_at_all():
    model, guide = build(TokenCategorical(), pool=False)
    with torch.no_grad():
        model.network.layer.out.bias.zero_()
        model.network.head.bias.zero_()  # so that tokens differ in their class
    x, y = data(likelihood=TokenCategorical)
    mask = torch.arange(5) < torch.tensor([5, 2, 3, 1] * 3)[:, None]
    statistics = ["accuracy", "class_frequencies"]
    results = []
    for padding in (0, 2):  # what stands in padding changes nothing
        torch.manual_seed(0)
        labels = torch.where(mask, y, padding)
        check = posterior_predictive_check(
            model, guide, batches(x, labels, mask), statistics=statistics, num_replicates=20
        )
        results.append(check)
    right = total = 0
    for i in range(12):
        for t in range(5):
            if mask[i, t]:
                total += 1
                right += int(check.prediction.probs[i, t].argmax() == y[i, t])
    assert total == 33
    assert math.isclose(check.observed["accuracy"], right / total, rel_tol=1e-12)
    torch.testing.assert_close(check.observed["class_frequencies"], y[mask].bincount(minlength=3).double() / 33)
    for name in statistics:
        assert torch.equal(results[0].replicated[name], results[1].replicated[name])
        assert torch.equal(results[0].p_values[name], results[1].p_values[name])


def test_batches_of_different_lengths_give_what_padded_ones_give():
    model, guide = build(TokenCategorical(), pool=False)
    x, y = data(likelihood=TokenCategorical)
    mask = torch.arange(5) < torch.tensor([2, 1, 2, 2, 1, 2, 2, 5, 4, 1, 3, 5])[:, None]
    torch.manual_seed(0)
    padded = posterior_predictive_check(model, guide, batches(x, y, mask), num_replicates=20)
    short = [(x[:7, :2], y[:7, :2], mask[:7, :2]), (x[7:], y[7:], mask[7:])]
    torch.manual_seed(0)
    check = posterior_predictive_check(model, guide, short, num_replicates=20)
    assert torch.equal(check.mask, padded.mask)
    assert check.replicated_labels.shape == (20, 12, 5)
    assert torch.equal(check.labels[mask], y[mask])
    assert check.observed["accuracy"] == padded.observed["accuracy"]
    torch.testing.assert_close(check.log_likelihood, padded.log_likelihood)
    assert check.observed["accuracy"] == (check.prediction.probs.argmax(-1) == y)[mask].double().mean()


def test_one_replicate_and_one_example_are_enough():
    model, guide = build()
    x, y = data(1)
    check = posterior_predictive_check(model, guide, [(x, y)], statistics=["accuracy"], num_replicates=1)
    assert check.p_values["accuracy"] in (0.25, 0.5, 0.75)


def test_the_table_has_a_line_for_every_number():
    model, guide = build(gain=20.0)
    check = posterior_predictive_check(model, guide, [data()], num_replicates=50)
    lines = str(check).splitlines()
    assert lines[0] == "12 examples, 50 replicates"
    names = [line.split()[0] for line in lines[2:]]
    assert names == ["accuracy", *(f"class_frequencies[{c}]" for c in range(3)), "ece", "entropy"]
    numbers = [float(value) for value in lines[2].split()[1:]]
    t = check.replicated["accuracy"]
    quantiles = t.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=F64)).tolist()
    p = check.p_values["accuracy"].item()
    expected = [check.observed["accuracy"].item(), *quantiles, p, 2 * min(p, 1 - p)]
    assert numbers == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("number", [0, -3])
def test_fewer_than_one_replicate_is_refused(number):
    model, guide = build()
    with pytest.raises(ValueError, match=f"num_replicates must be at least 1, got {number}"):
        posterior_predictive_check(model, guide, [data()], num_replicates=number)


def test_an_unknown_statistic_is_refused_before_any_batch_is_seen():
    model, guide = build()
    seen = iter([data()])
    with pytest.raises(ValueError, match="unknown test statistic 'auroc'"):
        posterior_predictive_check(model, guide, seen, statistics=["accuracy", "auroc"])
    assert len(list(seen)) == 1


def test_data_without_labels_are_refused():
    model, _ = build()
    with pytest.raises(ValueError, match="no labels"):
        prior_predictive_check(model, data()[0])


def test_a_statistic_that_changes_its_shape_or_is_nan_is_named():
    model, guide = build(gain=20.0)
    x = data()[0]
    y = torch.zeros(12, dtype=torch.long)
    with pytest.raises(ValueError, match=r"'kinds' changes its shape: \(1,\) for the data's labels, \([23],\) for a"):
        posterior_predictive_check(model, guide, [(x, y)], statistics={"kinds": lambda y, _: y.unique()})
    with pytest.raises(ValueError, match="'spread' is NaN"):
        posterior_predictive_check(model, guide, [(x, y)], statistics={"spread": lambda y, _: math.nan})


# --- The likelihood's own dtype


class Constant(nn.Module):
    """The same output for every example."""

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, x):
        return self.value.expand(len(x), 1)


def test_gaussian_replicates_of_integer_labels_are_not_cut_to_integers():
    """Truncated, numbers around 2.8 would have the mean 2.3 and the data's, 2.85, the p-value 0.002."""
    torch.manual_seed(0)
    model = Supervised(Constant(2.85), Gaussian(0.36), num_data=500)
    y = 3 - (torch.arange(500)[:, None] % 100 < 15).long()
    check = posterior_predictive_check(model, guides.for_model(model), [(torch.zeros(500, 1), y)], num_replicates=400)
    assert check.replicated_labels.dtype == check.labels.dtype == torch.float32
    assert torch.equal(check.labels, y.float())
    exact = {"mean": 0.5, "std": stats.chi2(499).sf(500 * 0.15 * 0.85 / 0.36**2)}
    for name, p in exact.items():
        assert abs(check.p_values[name].item() - p) < 4 * (p * (1 - p) / 400) ** 0.5 + 0.01


def test_labels_keep_a_precision_that_the_likelihood_lacks():
    model = Supervised(Constant(0.0), Gaussian(), num_data=3)
    y = torch.tensor([[0.1], [0.2], [0.3]], dtype=F64)
    check = posterior_predictive_check(model, guides.for_model(model), [(torch.zeros(3, 1), y)], num_replicates=2)
    assert torch.equal(check.labels, y)
    assert check.replicated_labels.dtype == torch.float32


# --- Statistics of inputs and of latent draws


@pytest.mark.parametrize("size", [8, 3])
def test_a_discrepancy_compares_data_and_replicate_at_the_same_draw(size):
    """T(y, v) = ‖y − b − A v‖² / σ²: of replicates χ²(8) whatever v is, so that p = E_{v | y} P(χ²(8) ≥ T(y, v))."""
    model, guide, x, y, b, a, _, loc, cov = conjugate()
    seen = []

    def chi_squared(labels, prediction, *, x, latents):
        seen.append(x)
        v = latents["network.layer.u"][0, 0]
        return ((labels[:, 0] - b - a @ v) / 0.5).square().sum()

    for shift in (0.0, 1.0):
        labels = y + shift
        check = posterior_predictive_check(
            model, guide, batches(x, labels[:, None], size=size), statistics=[chi_squared], num_replicates=4000
        )
        assert torch.equal(seen[-1], x)
        assert stats.kstest(check.replicated["chi_squared"], stats.chi2(8).cdf).pvalue > 0.001
        rng = torch.Generator().manual_seed(5)
        v = loc + torch.randn(20_000, 2, generator=rng, dtype=F64) @ torch.linalg.cholesky(cov).T
        realised = ((labels - b - v @ a.T) / 0.5).square().sum(1)
        assert check.observed["chi_squared"].shape == (4000,)
        assert stats.ks_2samp(check.observed["chi_squared"], realised).pvalue > 0.001
        p = stats.chi2(8).sf(realised).mean()
        assert abs(check.p_values["chi_squared"].item() - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-3
        assert check.is_discrepancy("chi_squared")
        numbers = str(check).splitlines()[2].split()
        assert float(numbers[1]) == pytest.approx(realised.mean().item(), rel=0.1)
        assert float(numbers[5]) == pytest.approx(p, abs=0.03)


def test_a_discrepancy_may_be_a_vector_and_stand_beside_plain_statistics():
    model, guide, x, y, b, a, *_ = conjugate()

    def residuals(labels, prediction, latents):
        return labels[:, 0] - b - a @ latents["network.layer.u"][0, 0]

    check = posterior_predictive_check(
        model, guide, [(x, y[:, None])], statistics=["mean", residuals], num_replicates=300
    )
    assert check.observed["residuals"].shape == check.replicated["residuals"].shape == (300, 8)
    assert check.observed["mean"].shape == (1,)
    assert not check.is_discrepancy("mean")
    above = (check.replicated["residuals"] > check.observed["residuals"]).double().sum(0)
    torch.testing.assert_close(check.p_values["residuals"], (above + 0.5) / 301)
    assert len(str(check).splitlines()) == 2 + 1 + 8


def test_latents_of_each_example_are_those_of_the_same_draw():
    """The prior of g is drawn anew for each example; the labels are the sign of what follows from it."""

    class Local(PyroModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x, y=None, mask=None):
            with local_sites(batch=len(x), num_data=6):
                infer = {"local": True, "posterior": dist.Normal(x, 0.1)}
                z = pyro.sample("z", dist.Normal(torch.zeros(len(x)), 1.0), infer=infer)
                return pyro.sample("y", dist.Normal(z, 1e-5), obs=y, infer={"local": True})

    def distance(labels, prediction, *, latents):
        return (labels - latents["z"]).abs().max()

    x = 10 * torch.arange(6.0)
    check = posterior_predictive_check(
        Local(), None, [(x[:4], x[:4]), (x[4:], x[4:])], statistics=[distance], num_replicates=30
    )
    assert check.replicated["distance"].max() < 1e-3
    assert check.observed["distance"].min() > 1


def test_a_trend_that_the_model_misses_shows_in_a_statistic_of_the_inputs():
    torch.manual_seed(0)
    x = torch.randn(200, 1)
    y = 0.3 * x + 0.954 * torch.randn(200, 1)
    model = Supervised(Constant(0.0), Gaussian(1.0), num_data=200)

    def slope(labels, prediction, x):
        return ((labels - prediction.mean) * x).mean()

    check = posterior_predictive_check(
        model, guides.for_model(model), batches(x, y, size=60), statistics=["std", slope], num_replicates=400
    )
    assert check.two_sided["slope"] < 0.01
    assert check.two_sided["std"] > 0.05
    expected = ((check.replicated_labels[:, :, 0] - 0.0) * x[:, 0]).double().mean(1)
    torch.testing.assert_close(check.replicated["slope"], expected)


def test_inputs_of_tokens_are_those_of_the_real_ones():
    model, guide = build(TokenCategorical(), pool=False)
    x, y = data(likelihood=TokenCategorical)
    mask = torch.arange(5) < torch.tensor([2, 1, 2, 2, 1, 2, 2, 5, 4, 1, 3, 5])[:, None]
    short = [(x[:7, :2], y[:7, :2], mask[:7, :2]), (x[7:], y[7:], mask[7:])]
    seen = []

    def spy(labels, prediction, x):
        seen.append(x)
        return float(len(labels))

    posterior_predictive_check(model, guide, short, statistics=[spy], num_replicates=2)
    assert all(torch.equal(each, x[mask]) for each in seen)


def test_data_from_each_likelihood_have_uniform_p_values_and_another_s_do_not():
    """Ranks of T among replicates, for labels drawn from the model's own likelihood."""
    torch.manual_seed(0)
    x = torch.zeros(30, 1)
    cases = {
        "student": (StudentT(3.0), Gaussian(1.0), lambda y, _: y.abs().max()),
        "poisson": (Poisson(), NegativeBinomial(1.0), lambda y, _: y.var()),
        "negative": (NegativeBinomial(2.0), Poisson(), lambda y, _: y.var()),
    }
    for likelihood, wrong, statistic in cases.values():
        p_values = {True: [], False: []}
        for right in (True, False):
            model = Supervised(Constant(1.0), likelihood if right else wrong, num_data=30)
            for _ in range(60):
                with torch.no_grad():
                    y = Supervised(Constant(1.0), likelihood, num_data=30)(x)
                check = prior_predictive_check(model, [(x, y)], statistics={"t": statistic}, num_replicates=39)
                p_values[right].append(check.p_values["t"].item())
        assert stats.kstest(p_values[True], "uniform").pvalue > 0.01
        assert stats.kstest(p_values[False], "uniform").pvalue < 1e-4
