"""Sources of a NaN or Inf are found, and validation values are compared."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn

from probattn.inference import metrics
from probattn.inference.non_finite import find_non_finite, first_line
from probattn.inference.training.validation import is_better

NAN, INF = math.nan, math.inf


def test_nothing_is_named_where_everything_is_finite():
    trace = poutine.trace(lambda: pyro.sample("u", dist.Normal(0.0, 1.0))).get_trace()
    batch = (torch.randn(3, 2), torch.tensor([0, 1, 2]), torch.ones(3, 2, dtype=torch.bool))
    assert find_non_finite(batch, {"model": nn.Linear(2, 2)}, (trace,)) is None
    assert find_non_finite((), {}, ()) is None


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_rows_of_the_batch_come_first(value):
    x, y = torch.zeros(4, 2, 3), torch.zeros(4)
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(NAN)
    x[1, 0, 2] = x[3, 1, 0] = value
    assert "the inputs, rows [1, 3] of the batch" in find_non_finite((x, y), {"model": model}, ())
    y[2] = value
    assert "the labels, rows [2] of the batch" in find_non_finite((torch.zeros(4, 2), y), {"model": model}, ())
    many = torch.full((30, 1), value)
    assert str(list(range(10))) in find_non_finite((many, y), {}, ())


def test_a_parameter_is_named_with_its_part():
    model, guide = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.Linear(1, 1)
    with torch.no_grad():
        guide.bias.fill_(INF)
    batch = (torch.zeros(1, 1), torch.zeros(1))
    assert "parameter bias of the guide" in find_non_finite(batch, {"model": model, "guide": guide}, ())
    with torch.no_grad():
        model[1].weight.fill_(NAN)
    assert "parameter 1.weight of the model" in find_non_finite(batch, {"model": model, "guide": guide}, ())


def test_a_site_is_named_by_its_value_or_its_log_density():
    def program():
        pyro.sample("good", dist.Normal(0.0, 1.0))
        pyro.sample("bad", dist.Delta(torch.tensor(INF)))

    assert "site bad" in find_non_finite((), {}, (poutine.trace(program).get_trace(),))

    def impossible():
        pyro.sample("good", dist.Normal(0.0, 1.0))
        pyro.sample("unlikely", dist.Delta(torch.tensor(0.0)), obs=torch.tensor(1.0))

    trace = poutine.trace(impossible).get_trace()
    trace.compute_log_prob()
    assert "site unlikely" in find_non_finite((), {}, (trace,))


@pytest.mark.parametrize("monitor", ["log_prob", *(score.__name__ for score in metrics.OF_CLASSES)])
def test_better_is_higher_or_lower_as_the_metric_says(monitor):
    lower = {"aurc", "eaurc", "fpr95", "ece", "mce", "nll", "brier"}
    assert is_better(monitor, 0.1, 0.2) == (monitor in lower)
    assert is_better(monitor, 0.2, 0.1) == (monitor not in lower)
    assert not is_better(monitor, 0.2, 0.2)


@pytest.mark.parametrize("monitor", ["accuracy", "nll"])
def test_any_value_beats_none_and_nan_beats_nothing(monitor):
    assert is_better(monitor, 0.5, None)
    assert is_better(monitor, NAN, None)
    for value, best in itertools.product([0.0, 0.5, NAN], [0.0, 0.5]):
        assert not (math.isnan(value) and is_better(monitor, value, best))
    assert is_better(monitor, 0.5, NAN)
    assert not is_better(monitor, NAN, NAN)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n Trace Shapes:"), "ValueError"),
        (RuntimeError(), "RuntimeError"),
        (ValueError(""), "ValueError"),
        (ValueError("\n "), "ValueError"),
    ],
)
def test_the_first_line_of_an_error_is_its_message_or_its_class(error, expected):
    assert first_line(error) == expected
