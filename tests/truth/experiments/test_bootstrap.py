"""Intervals over seeds and examples, and Holm's adjustment, against exact laws."""

import numpy as np
import pandas as pd
import pytest

from probattn.experiments.evaluation.example_intervals import over_seeds
from probattn.experiments.evaluation.seed_statistics import holm

SEEDS, EXAMPLES, REPLICATES = 6, 40, 4000


def losses(*, same_examples):
    """Losses with an effect of the seed, of the example, and of both."""
    random = np.random.default_rng(np.random.randint(2**31))
    of_seed = random.normal(size=(SEEDS, 1))
    of_example = random.normal(size=(1 if same_examples else SEEDS, EXAMPLES))
    return 0.5 * of_seed + of_example + 0.3 * random.normal(size=(SEEDS, EXAMPLES))


def means_of_draws(values, *, same_examples):
    """Mean loss of each seed on drawn examples ``(seeds, replicates)``."""
    random = np.random.default_rng(np.random.randint(2**31))
    size = (1 if same_examples else SEEDS, REPLICATES, EXAMPLES)
    drawn = np.broadcast_to(random.integers(EXAMPLES, size=size), (SEEDS, REPLICATES, EXAMPLES))
    return np.stack([row[of_seed].mean(-1) for row, of_seed in zip(values, drawn, strict=True)])


def exact_variance(values, *, same_examples):
    """Of the mean of a bootstrap over seeds, and then over examples."""
    between = values.mean(1).var() / SEEDS
    if not same_examples:
        # A seed that is drawn c times has its examples c times; the mean of c² is 2 − 1/S.
        return between + (2 - 1 / SEEDS) * values.var(1).mean() / (SEEDS * EXAMPLES)
    centred = values - values.mean(1, keepdims=True)
    # The variance over examples of the mean over drawn seeds: of all seeds, and of the draw.
    common = centred.mean(0).var()
    within = (centred**2).mean() - (centred.mean(0) ** 2).mean()
    return between + (common + within / SEEDS) / EXAMPLES


@pytest.mark.parametrize("same_examples", [True, False])
def test_the_bootstrap_has_the_variance_of_its_two_stages(same_examples):
    values = losses(same_examples=same_examples)
    drawn = means_of_draws(values, same_examples=same_examples)
    replicates = over_seeds(drawn, seed=np.random.randint(2**31))
    expected = exact_variance(values, same_examples=same_examples)
    # The variance of a sample variance of a nearly normal law is 2 σ⁴ / R.
    error = expected * (2 / REPLICATES) ** 0.5
    assert abs(replicates.var() - expected) <= 5 * error
    assert abs(replicates.mean() - values.mean()) <= 5 * (expected / REPLICATES) ** 0.5


def test_rows_share_the_draws_of_seeds():
    drawn = means_of_draws(losses(same_examples=True), same_examples=True)
    difference = over_seeds(drawn + 3) - over_seeds(drawn)
    np.testing.assert_allclose(difference, 3)


def test_holm_rejects_step_by_step():
    """Rejected at α are the k smallest p with p_(j) ≤ α / (m − j + 1) for all j ≤ k."""
    p_values = np.random.uniform(size=7) ** 3
    adjusted = holm(pd.Series(p_values))
    for level in (0.01, 0.05, 0.2, 0.5):
        rejected = set()
        for step, row in enumerate(np.argsort(p_values)):
            if p_values[row] > level / (len(p_values) - step):
                break
            rejected.add(int(row))
        assert {row for row, value in enumerate(adjusted) if value <= level} == rejected
