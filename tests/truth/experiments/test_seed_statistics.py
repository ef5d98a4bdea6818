"""Means, standard deviations, paired intervals and best rows, against arithmetic by hand and
SciPy's paired t-test."""

import math

import numpy as np
import pandas as pd
import pytest
from evaluated_runs import score_frame
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from probattn.experiments.evaluation.example_intervals import draw_counts, over_seeds
from probattn.experiments.evaluation.metric_display import format_value
from probattn.experiments.evaluation.seed_statistics import Replicates, compare, holm
from probattn.inference.metrics import OF_CLASSES, Metric

ACC = OF_CLASSES["accuracy"]


def seeds(key, *values):
    return {seed: {key: value} for seed, value in enumerate(values)}


def one(scores, key="accuracy", **options):
    """Return the cells of one metric by row."""
    table = compare(score_frame(scores), metrics={key: OF_CLASSES[key]}, **options)
    return {row: table.cells[row][key] for row in table.rows}


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(0, 3), st.integers(0, 3))
def test_interval_is_that_of_the_paired_t_test_over_shared_seeds(
    seed, shared, only_row, only_baseline
):
    rng = np.random.default_rng(seed)
    common = list(rng.permutation(100)[:shared])
    shift = float(rng.choice([-3, 0, 3]))
    row = {
        int(s): {"nll": float(rng.normal(shift))} for s in [*common, *range(200, 200 + only_row)]
    }
    baseline = {
        int(s): {"nll": float(rng.normal())}
        for s in [*range(300, 300 + only_baseline), *common[::-1]]
    }
    cell = one({"row": row, "base": baseline}, "nll", baselines={"row": "base"})["row"]
    a, b = ([runs[int(s)]["nll"] for s in common] for runs in (row, baseline))
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(0.95)
    assert (cell.low, cell.high) == pytest.approx((interval.low, interval.high))
    assert cell.difference == pytest.approx(np.mean(a) - np.mean(b))
    assert cell.significant == (test.pvalue < 0.05 and shared > 2)
    assert cell.mean == pytest.approx(np.mean([run["nll"] for run in row.values()]))
    assert cell.std == pytest.approx(np.std([run["nll"] for run in row.values()], ddof=1))
    assert cell.n == shared + only_row


def replicates(values, *seeds):
    return Replicates(seeds, {"accuracy": values})


@pytest.mark.parametrize("number", [1, 3])
def test_without_a_spread_over_seeds_intervals_are_normal_over_examples(number):
    a = np.random.normal(0.9, 0.01, 1000)
    b = np.random.normal(0.8, 0.01, 1000)
    names = range(number)
    resampled = {"a": replicates(a, *names), "b": replicates(b, *names)}
    tiny = 1e-6 * np.arange(number)
    scores = {
        "a": seeds("accuracy", *(0.9 + tiny)),
        "b": seeds("accuracy", *(0.8 + 2 * tiny)),
    }
    cell = one(scores, baselines={"a": "b"}, resampled=resampled)["a"]
    error = np.std(a - b, ddof=1)
    expected = stats.norm(cell.difference, error).interval(0.95)
    assert (cell.low, cell.high) == pytest.approx(expected, rel=1e-3)
    z = cell.difference / error
    assert cell.p_value == pytest.approx(2 * stats.norm.sf(z), rel=1e-3)


@pytest.mark.parametrize("number", [3, 8])
def test_without_a_spread_over_examples_intervals_are_students(number):
    """Of a bootstrap of seeds, as far as its own draws tell their spread."""
    values = np.random.normal(size=number)
    drawn = over_seeds(np.repeat(values[:, None], 20_000, axis=1), seed=np.random.randint(2**31))
    names = range(number)
    resampled = {"a": replicates(drawn, *names), "b": replicates(0 * drawn, *names)}
    scores = {"a": seeds("accuracy", *values), "b": seeds("accuracy", *(0 * values))}
    cell = one(scores, baselines={"a": "b"}, resampled=resampled)["a"]
    test = stats.ttest_1samp(values, 0)
    # The spread of 20,000 draws is known to 0.5 %, so that of the examples may seem that large.
    interval = test.confidence_interval()
    assert (cell.low, cell.high) == pytest.approx((interval.low, interval.high), rel=0.1)
    assert cell.p_value == pytest.approx(test.pvalue, rel=0.1)


@pytest.mark.parametrize(("of_seed", "of_example"), [(1.0, 0.1), (0.3, 3.0)])
def test_intervals_of_three_seeds_hold_the_truth_as_often_as_they_say(of_seed, of_example):
    number, examples, trials, inside = 3, 40, 120, 0
    for _ in range(trials):
        losses = of_seed * np.random.normal(size=(number, 1))
        losses = losses + of_example * np.random.normal(size=(number, examples))
        counts = draw_counts(examples, resamples=300, seed=np.random.randint(2**31))
        drawn = np.stack([counts @ row / examples for row in losses])
        values = over_seeds(drawn, seed=np.random.randint(2**31))
        names = range(number)
        resampled = {"a": replicates(values, *names), "b": replicates(0 * values, *names)}
        scores = {"a": seeds("accuracy", *losses.mean(1)), "b": seeds("accuracy", *(0,) * number)}
        cell = one(scores, baselines={"a": "b"}, resampled=resampled)["a"]
        inside += cell.low <= 0 <= cell.high
    # A bootstrap alone has 72 % where seeds differ most.
    assert inside / trials >= 0.95 - 5 * (0.95 * 0.05 / trials) ** 0.5


def test_replicates_of_other_seeds_are_not_used():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.9, 0.01, 1000), rng.normal(0.8, 0.01, 1000)
    scores = {"a": seeds("accuracy", 0.9, 0.8), "b": seeds("accuracy", 0.8, 0.6)}
    resampled = {"a": replicates(a, 0), "b": replicates(b, 0, 1)}
    cell = one(scores, baselines={"a": "b"}, resampled=resampled)["a"]
    interval = stats.ttest_rel([0.9, 0.8], [0.8, 0.6]).confidence_interval()
    assert (cell.low, cell.high) == pytest.approx((interval.low, interval.high))


def test_one_seed_without_a_spread_over_examples_has_no_interval():
    a = np.random.default_rng(0).normal(0.9, 0.01, 1000)
    scores = {"a": seeds("accuracy", 0.9), "b": seeds("accuracy", 0.8)}
    for equal in ({"a": replicates(a, 0), "b": replicates(a, 0)}, {}):
        cell = one(scores, baselines={"a": "b"}, resampled=equal)["a"]
        assert np.isnan([cell.std, cell.low, cell.high]).all()
        assert not cell.significant
        assert cell.difference == pytest.approx(0.1)


def test_p_values_are_corrected_for_all_cells_of_a_comparison():
    rng = np.random.default_rng(0)
    frame = {
        row: {seed: {"accuracy": rng.normal(shift), "nll": rng.normal(shift)} for seed in range(5)}
        for row, shift in (("a", 2), ("b", 1), ("base", 0))
    }
    metrics = {key: OF_CLASSES[key] for key in ("accuracy", "nll")}
    table = compare(score_frame(frame), metrics=metrics, baselines={"a": "base", "b": "base"})
    places = [(row, key) for row in ("a", "b") for key in metrics]
    tests = [
        stats.ttest_rel(*([run[key] for run in frame[name].values()] for name in (row, "base")))
        for row, key in places
    ]
    corrected = [table.cells[row][key].p_value for row, key in places]
    assert corrected == pytest.approx(holm(pd.Series([test.pvalue for test in tests])).tolist())


@pytest.mark.parametrize("shift", [0.0, 0.01, -0.2])
def test_differences_that_are_all_the_same_have_no_interval(shift):
    base = (0.91, 0.93, 0.97)
    scores = {
        "a": seeds("accuracy", *(value + shift for value in base)),
        "b": seeds("accuracy", *base),
    }
    cell = one(scores, baselines={"a": "b"})["a"]  # value + 0.01 − value varies in the last digit
    assert cell.difference == pytest.approx(shift)
    assert (cell.has_interval, cell.significant) == (False, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_undefined_for_a_seed_is_undefined_for_the_row(bad):
    scores = {
        "a": seeds("accuracy", 0.9, bad, 0.8),
        "b": seeds("accuracy", 0.9, 0.7, 0.8),
        "c": seeds("accuracy", 1.0),
    }
    table = compare(score_frame(scores), metrics={"accuracy": ACC}, baselines={"a": "b", "b": "a"})
    a, b = table.cells["a"]["accuracy"], table.cells["b"]["accuracy"]
    assert np.isnan([a.mean, a.std, a.difference, a.low]).all()
    assert b.mean == pytest.approx(0.8)
    assert np.isnan([b.difference, b.low]).all()


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_best_of_each_group_is_marked_where_the_paired_t_test_tells_it_from_the_next(
    higher_is_better,
):
    rng = np.random.default_rng()
    metric = Metric(max, "", 1, higher_is_better, "")
    rows = "abcdef"
    marked = 0
    for _ in range(30):
        values = {row: rng.normal(rng.normal(), rng.choice([0.1, 1.0]), 4) for row in rows}
        scores = {row: seeds("m", *map(float, values[row])) for row in rows}
        groups = {"first": "abc", "second": "def"}
        table = compare(score_frame(scores), metrics={"m": metric}, groups=groups)
        expected = set()
        for names in groups.values():
            first, second, _ = sorted(
                names, key=lambda row: values[row].mean(), reverse=higher_is_better
            )
            if stats.ttest_rel(values[first], values[second]).pvalue <= 0.05:
                expected.add(first)
        assert table.best["m"] == expected
        marked += len(expected)
    assert 0 < marked < 60


def test_the_best_of_one_seed_is_marked_where_its_examples_tell_it_from_the_next():
    noise = np.random.normal(size=1000)
    scores = {"a": seeds("accuracy", 0.9), "b": seeds("accuracy", 0.8)}
    for spread, best in ((0.01, {"a"}), (0.3, set())):
        resampled = {"a": replicates(0.9 + spread * noise, 0), "b": replicates(0 * noise + 0.8, 0)}
        table = compare(score_frame(scores), metrics={"accuracy": ACC}, resampled=resampled)
        assert table.best["accuracy"] == best
    without = compare(score_frame(scores), metrics={"accuracy": ACC})
    assert without.best["accuracy"] == set()


def test_rows_that_share_no_seed_or_have_no_mean_are_not_best():
    scores = {
        "a": {seed: {"accuracy": 0.9 + 0.001 * seed} for seed in range(4)},
        "b": {seed: {"accuracy": 0.1 + 0.002 * seed} for seed in range(4, 8)},
        "c": seeds("accuracy", math.nan, math.nan),
    }
    table = compare(score_frame(scores), metrics={"accuracy": ACC})
    assert table.best["accuracy"] == set()


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0.98764, 100, "98.76"),
        (-0.00001, 100, "0.00"),
        (-0.5, 1, "-0.50"),
        (math.nan, 1, "–"),
        (-math.inf, 1, "–"),
    ],
)
def test_printed_numbers(value, scale, text):
    assert format_value(value, scale) == text
