"""Test statistics by hand, and the choice of statistics."""

import math

import torch

from probattn import guides
from probattn.inference import Prediction, metrics, posterior_predictive_check
from probattn.inference.diagnostics.predictive_check import CLASSIFICATION, REGRESSION
from probattn.models import Supervised
from probattn.models.likelihoods import Gaussian

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])
CLASSES = Prediction(probs=PROBS)
LABELS = torch.tensor([0, 1, 0, 1])
NUMBERS = Prediction(mean=torch.tensor([[1.0, 0.0], [3.0, 4.0]]), variance=torch.ones(2, 2))
TARGETS = torch.tensor([[2.0, 0.0], [5.0, 1.0]])


def test_statistics_of_classes():
    assert CLASSIFICATION["accuracy"](LABELS, CLASSES) == 0.5
    assert CLASSIFICATION["class_frequencies"](LABELS, CLASSES).tolist() == [0.5, 0.5, 0.0]
    assert math.isclose(CLASSIFICATION["entropy"](LABELS, CLASSES), math.log(2))
    assert CLASSIFICATION["entropy"](torch.zeros(4, dtype=torch.long), CLASSES) == 0
    # 15 bins: 0.7 and 0.8 right, 0.4 and 0.6 wrong, each in a bin of its own.
    assert math.isclose(CLASSIFICATION["ece"](LABELS, CLASSES), (0.3 + 0.2 + 0.4 + 0.6) / 4, rel_tol=1e-6)
    assert CLASSIFICATION["ece"](LABELS, CLASSES) == metrics.ece(PROBS, LABELS)


def test_statistics_of_numbers():
    assert REGRESSION["mean"](TARGETS, NUMBERS).tolist() == [3.5, 0.5]
    assert REGRESSION["std"](TARGETS, NUMBERS).tolist() == [1.5, 0.5]
    expected = [math.sqrt((1 + 4) / 2), math.sqrt((0 + 9) / 2)]
    torch.testing.assert_close(REGRESSION["rmse"](TARGETS, NUMBERS), torch.tensor(expected, dtype=torch.float64))


def share_of_zeros(labels, prediction):
    return (labels == 0).double().mean()


def test_a_statistic_of_the_users_own(build, data):
    model, guide = build()
    check = posterior_predictive_check(model, guide, [data()], statistics={"zeros": share_of_zeros}, num_replicates=2)
    assert check.observed == {"zeros": (check.labels == 0).double().mean()}


def test_a_trend_that_the_model_misses_shows_in_a_statistic_of_the_inputs(constant_network, batches):
    torch.manual_seed(0)
    x = torch.randn(200, 1)
    y = 0.3 * x + 0.954 * torch.randn(200, 1)
    model = Supervised(constant_network(0.0), Gaussian(1.0), num_data=200)
    statistics = {"std": REGRESSION["std"], "slope": lambda labels, prediction: (labels * x).mean()}
    data = batches(x, y, size=60)
    check = posterior_predictive_check(model, guides.for_model(model), data, statistics=statistics, num_replicates=400)
    assert check.p_values["slope"] < 0.005
    assert 0.025 < check.p_values["std"] < 0.975
    rows = str(check).splitlines()
    assert [row.split()[0] for row in rows] == ["statistic", "std[0]", "slope"]
    assert float(rows[2].split()[5]) < 0.005
