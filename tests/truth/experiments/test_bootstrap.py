"""Intervals over seeds and examples, and Holm's adjustment, against exact laws."""

import numpy as np
import pandas as pd
import pytest

from probattn.experiments.evaluation.bootstrap import holm, p_value, paired_difference


def mean(frame):
    return float(frame["loss"].mean())


def runs(values):
    return {seed: pd.DataFrame({"loss": row}) for seed, row in enumerate(values)}


def two_way(same_examples, seeds=6, examples=40):
    """Losses with an effect of the seed, of the example, and of both."""
    random = np.random.default_rng(np.random.randint(2**31))
    of_seed = random.normal(size=(seeds, 1))
    of_example = random.normal(size=(1 if same_examples else seeds, examples))
    return 0.5 * of_seed + of_example + 0.3 * random.normal(size=(seeds, examples))


@pytest.mark.parametrize("same_examples", [True, False])
def test_the_interval_has_the_variance_of_the_two_stages(same_examples):
    """The exact variance of the mean of a two-stage bootstrap, given the losses."""
    losses = two_way(same_examples)
    seeds, examples = losses.shape
    zero = runs(np.zeros_like(losses))
    found = paired_difference(
        runs(losses), zero, mean, same_examples=same_examples, replicates=4000
    )
    assert found.value == pytest.approx(losses.mean())
    between = losses.mean(1).var() / seeds
    if same_examples:
        # Var over examples of the mean over drawn seeds: that over all seeds, and what they add.
        centred = losses - losses.mean(1, keepdims=True)
        common = centred.mean(0).var()
        within = (centred**2).mean() - (centred.mean(0) ** 2).mean()
        variance = between + (common + within / seeds) / examples
    else:
        variance = between + losses.var(1).mean() / (seeds * examples)
    width = found.high - found.low
    # A 95 % interval of a nearly normal law; 4,000 replicates give its width to 2 %.
    assert width == pytest.approx(2 * 1.96 * variance**0.5, rel=0.15)


def test_equal_runs_have_no_difference_and_a_p_value_of_one():
    losses = two_way(True)
    found = paired_difference(runs(losses), runs(losses), mean, same_examples=True, replicates=50)
    assert found == (0, 0, 0, 1)


def test_a_difference_that_every_replicate_has_is_significant():
    losses = two_way(True)
    found = paired_difference(
        runs(losses), runs(losses + 5), mean, same_examples=True, replicates=200
    )
    assert found.high < 0
    assert found.p_value == pytest.approx(2 / 201)


def test_the_p_value_is_twice_the_smaller_tail():
    assert p_value(np.array([-1.0, 1, 1, 1])) == pytest.approx(2 * 2 / 5)


@pytest.mark.parametrize("change", ["rows", "seeds"])
def test_other_examples_or_seeds_are_an_error(change):
    losses = two_way(True)
    theirs = runs(losses[:, 1:]) if change == "rows" else {99: pd.DataFrame({"loss": losses[0]})}
    with pytest.raises(ValueError, match="seed"):
        paired_difference(runs(losses), theirs, mean, same_examples=True)


def test_holm_rejects_step_by_step():
    """Rejected at α are the k smallest p with p_(j) ≤ α / (m − j + 1) for all j ≤ k."""
    p_values = np.random.uniform(size=7) ** 3
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.2, 0.5):
        order = np.argsort(p_values)
        rejected = set()
        for step, row in enumerate(order):
            if p_values[row] > level / (len(p_values) - step):
                break
            rejected.add(int(row))
        assert {row for row, value in enumerate(adjusted) if value <= level} == rejected
