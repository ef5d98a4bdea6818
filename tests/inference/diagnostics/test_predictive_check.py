"""Predictive checks: statistics of replicates against loops, tokens, dtypes, refusals."""

import math

import pytest
import torch

from probattn.inference import metrics, predict
from probattn.inference.diagnostics.predictive_check import (
    CLASSIFICATION,
    p_value,
    posterior_predictive_check,
)
from probattn.models.likelihoods import Bernoulli, Gaussian, TokenCategorical

F64 = torch.float64


def test_every_default_statistic_of_every_replicate_is_the_metric_of_the_mean_prediction(batches, build, data):
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


def test_the_prediction_given_to_statistics_is_one_object_for_data_and_replicates(build, data):
    model, guide = build()
    seen = []

    def spy(labels, prediction):
        seen.append((labels, prediction))
        return float(labels[0])

    x, y = data()
    check = posterior_predictive_check(model, guide, [(x, y)], statistics={"spy": spy}, num_replicates=5)
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


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli])
def test_labels_that_are_no_classes_have_statistics_of_numbers(batches, build, data, likelihood):
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


def test_tokens_count_as_examples_and_padding_not_at_all(batches, build, data):
    model, guide = build(TokenCategorical(), pool=False)
    with torch.no_grad():
        model.network.layer.out.bias.zero_()
        model.network.head.bias.zero_()  # so that tokens differ in their class
    x, y = data(likelihood=TokenCategorical)
    mask = torch.arange(5) < torch.tensor([5, 2, 3, 1] * 3)[:, None]
    statistics = {name: CLASSIFICATION[name] for name in ("accuracy", "class_frequencies")}
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


def test_a_statistic_that_changes_its_shape_or_is_nan_is_named(build, data):
    model, guide = build(gain=20.0)
    x = data()[0]
    y = torch.zeros(12, dtype=torch.long)
    with pytest.raises(RuntimeError, match="equal size"):
        posterior_predictive_check(model, guide, [(x, y)], statistics={"kinds": lambda y, _: y.unique()})
    with pytest.raises(ValueError, match="'spread' is NaN"):
        posterior_predictive_check(model, guide, [(x, y)], statistics={"spread": lambda y, _: math.nan})
