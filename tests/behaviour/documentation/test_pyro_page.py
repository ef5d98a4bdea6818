"""docs/pyro.md: results of its code."""

from pathlib import Path

import pyro
import pytest
import torch
from torch.testing import assert_close

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def namespace(run_page, tmp_path_factory):
    """Everything that the page's code defines."""
    with pytest.MonkeyPatch.context() as patch, pyro.get_param_store().scope():
        patch.chdir(tmp_path_factory.mktemp("page"))
        return run_page(DOCS / "pyro.md")


def test_the_three_loops_agree(namespace):
    (svi, svi_means), (loop, loop_means), (fitted, fit_means) = (
        namespace[name] for name in ("svi_result", "torch_result", "fit_result")
    )
    assert abs(loop - fitted) < 0.001
    assert_close(fit_means, loop_means, atol=0.001, rtol=0)
    assert abs(svi - loop) < 1.5
    assert_close(svi_means, loop_means, atol=0.15, rtol=0)
    start = namespace["result"](*namespace["start"]())[0]
    assert max(svi, loop, fitted) < start - 5
    history = namespace["history"].steps
    assert len({step["step"] for step in history}) == len(history) > 1


def test_a_function_guide_trains(namespace):
    losses = namespace["function_losses"]
    assert sum(losses[-20:]) / 20 < namespace["torch_result"][0] + 5


def test_the_loops_find_the_posterior_of_the_chain(namespace):
    prediction, chain = namespace["prediction"], namespace["by_nuts"]
    assert_close(chain.mean, prediction.mean, atol=0.15, rtol=0)
    assert abs((chain.variance / prediction.variance).mean() - 1) < 0.15


def test_predictive_and_predict_agree(namespace):
    sampled, prediction = namespace["sampled"], namespace["prediction"]
    error = (prediction.variance / len(sampled)).sqrt()
    assert ((sampled.mean(0) - prediction.mean).abs() < 5 * error).all()
    assert abs((sampled.var(0) / prediction.variance).mean() - 1) < 0.1


def test_the_bayesian_head_has_the_exact_posterior(namespace):
    x, y, predicted = namespace["x"], namespace["y"], namespace["bayesian_prediction"]
    features = namespace["bayesian"].attention(x).mean(-2)  # Bayesian linear regression
    precision = torch.eye(4) / 3.0**2 + features.T @ features / 0.5**2
    mean = features @ torch.linalg.solve(precision, features.T @ y / 0.5**2)
    variance = (features @ torch.linalg.inv(precision) * features).sum(-1) + 0.5**2
    assert_close(predicted.mean, mean, atol=0.08, rtol=0)
    assert_close(predicted.variance, variance, atol=0, rtol=0.15)
