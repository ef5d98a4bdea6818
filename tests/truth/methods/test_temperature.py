"""Temperature scaling against SciPy's minimum on logits and by hand, and what it must never
change."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from float64 import F64, randn64, tensor64
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from probattn.inference import (
    BiasScaling,
    FewExamplesWarning,
    Prediction,
    VectorScaling,
    metrics,
)
from probattn.inference.methods.scaling import (
    TEMPERATURE_RANGE,
    fit_temperature,
    relative_error,
    scale,
)


def of_logits(logits, labels=None):
    return Prediction(probs=logits.softmax(-1), labels=labels)


def nll_at(prediction, temperature):
    return F.cross_entropy(prediction.probs.log() / temperature, prediction.labels).item()


def mean_confidence(prediction, temperature):
    return (prediction.log_probs.double() / temperature).softmax(-1).amax(-1).mean().item()


def test_scaling_by_hand():
    probs = tensor64([[0.8, 0.2], [0.5, 0.5]])
    for temperature, expected in (
        (2.0, 2 / 3),
        (1.0, 0.8),
        (0.5, 0.64 / 0.68),
    ):  # √0.8 : √0.2, 0.8² : 0.2²
        scaled = scale(Prediction(probs=probs), temperature).probs
        assert scaled.flatten().tolist() == pytest.approx([expected, 1 - expected, 0.5, 0.5])
    labels, ones = torch.tensor([0, 1]), torch.ones(2)
    given = Prediction(
        probs=probs, expected_entropy=ones, energy=ones, draws=probs[None], labels=labels
    )
    scaled = scale(given, 3.0)  # of which what single draws say is not known
    assert (scaled.expected_entropy, scaled.energy, scaled.draws) == (None,) * 3
    assert torch.equal(scaled.mutual_information, given.mutual_information)
    assert torch.equal(scaled.labels, labels)


def test_for_one_deterministic_draw_it_is_classic_temperature_scaling_of_logits():
    logits, labels = 4 * randn64(500, 4) + 7, torch.randint(4, (500,))
    labels[:300] = logits[:300].argmax(-1)
    loss = lambda temperature: F.cross_entropy(logits / temperature, labels).item()  # noqa: E731
    optimum = optimize.minimize_scalar(
        loss, bounds=(1.5, 15), method="bounded", options={"xatol": 1e-9}
    )
    assert fit_temperature(of_logits(logits, labels)) == pytest.approx(optimum.x, rel=1e-6)
    torch.testing.assert_close(scale(of_logits(logits), 2.5).probs, (logits / 2.5).softmax(-1))


def test_temperatures_of_repeated_samples_have_their_standard_error():
    """Of a model too sure by a factor of 2, which gets that factor."""
    logits = randn64(300, 4)
    labels = (logits.softmax(-1).multinomial(1)[:, 0] for _ in range(200))
    repeated = torch.tensor(
        [math.log(fit_temperature(of_logits(2 * logits, sampled))) for sampled in labels]
    )
    expected = relative_error((2 * logits).log_softmax(-1), 0.5)
    assert repeated.std().item() == pytest.approx(expected, rel=0.2)
    assert (
        abs(repeated.mean().item() - math.log(2)) < 0.5 * expected
    )  # up to its bias by few examples


@given(
    st.lists(st.lists(st.floats(-30, 30), min_size=4, max_size=4), min_size=2, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_no_temperature_has_a_lower_loss_on_validation(logits, labels):
    prediction = of_logits(tensor64(logits), torch.tensor(labels[: len(logits)]))
    temperature = fit_temperature(prediction)
    assert TEMPERATURE_RANGE[0] <= temperature <= TEMPERATURE_RANGE[1]
    if mean_confidence(prediction, temperature) > (len(logits) + 1) / (len(logits) + 2) - 1e-9:
        return  # raised, or a temperature of 1 that is not lowered
    loss = nll_at(prediction, temperature)
    for candidate in (1.0, *TEMPERATURE_RANGE, temperature * 0.99, temperature * 1.01):
        if TEMPERATURE_RANGE[0] <= candidate <= TEMPERATURE_RANGE[1]:
            assert loss <= nll_at(prediction, candidate) + 1e-9 * (1 + abs(loss))


PROBABILITY = st.one_of(
    st.sampled_from([0.0, 1e-45, 1e-40, 1e-8, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32)
)


@given(
    st.lists(PROBABILITY, min_size=2, max_size=6),
    st.floats(0.05, 20.0),
    st.sampled_from([torch.float32, F64]),
)
@settings(max_examples=150, deadline=None)
def test_the_ranking_of_classes_never_changes_and_ties_stay(weights, temperature, dtype):
    probs = tensor64([weights])
    probs = (
        (probs / probs.sum()).to(dtype)
        if probs.sum() > 1e-30
        else torch.full_like(probs, 0.5, dtype=dtype)
    )
    scaled = scale(Prediction(probs=probs), temperature).probs
    assert scaled.dtype == dtype
    assert scaled.sum().item() == pytest.approx(1, abs=1e-6)
    assert ((scaled >= 0) & (scaled <= 1)).all()
    lower = probs[0].unsqueeze(1) < probs[0].unsqueeze(0)
    assert (scaled[0].unsqueeze(1) <= scaled[0].unsqueeze(0) * (1 + 1e-14))[lower].all()
    assert (scaled[probs == probs.amax()] == scaled.amax()).all()
    assert metrics.accuracy(scaled, probs.argmax(1)) == 1


def test_without_an_error_confidence_is_what_the_number_of_examples_supports():
    """The rule of succession after as many successes."""
    logits = randn64(20, 3)
    logits += F.one_hot(
        logits.argmax(-1), 3
    )  # without near ties, which no temperature in its range tells apart
    right = of_logits(logits, logits.argmax(-1))
    with pytest.warns(FewExamplesWarning, match="20 examples"):
        temperature = fit_temperature(right)
    assert mean_confidence(right, temperature) == pytest.approx(21 / 22)
    sure = of_logits(40 * logits, logits.argmax(-1))
    assert mean_confidence(sure, 1.0) > 21 / 22
    assert fit_temperature(sure) == 1  # no error is no reason for less confidence either
    assert fit_temperature(of_logits(logits, logits.argmin(-1))) == TEMPERATURE_RANGE[1]


def test_zeros_count_as_the_smallest_normal_number():
    """All right but one, that is certain: log p of its label is log tiny = −87.3, odds of 99,999 to
    1."""
    probs = torch.tensor([[1.0, 0.0]] * 99_999 + [[0.0, 1.0]])
    prediction = Prediction(probs=probs, labels=torch.zeros(100_000, dtype=torch.long))
    expected = -math.log(torch.finfo(torch.float32).tiny) / math.log(99_999)
    assert fit_temperature(prediction) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("probs", "labels", "word"),
    [
        (torch.full((2, 3), 1 / 3), None, "labels"),
        (torch.full((2, 3), 1 / 3), torch.zeros(3).long(), "shape"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0, 3]), "indices"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0.0, 1.0]), "indices"),
        (torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), torch.zeros(2).long(), "NaN"),
        (torch.full((2, 4, 3), 1 / 3), torch.zeros(2, 4).long(), "tokens"),
    ],
)
def test_what_cannot_be_fitted_is_an_error(probs, labels, word):
    with pytest.raises(ValueError, match=word):
        fit_temperature(Prediction(probs=probs, labels=labels))


def test_temperature_and_bias_are_where_the_penalised_likelihood_is_flat():
    """∂/∂β: Σ r_i · log p_i = 0; ∂/∂b: Σ r_i + b = 0, r = scaled probabilities − targets."""
    logits = 2 * randn64(300, 3)
    law = torch.distributions.Categorical(logits=0.7 * logits + tensor64([0.5, 0.0, -0.5]))
    prediction = of_logits(logits, law.sample())
    scaling = BiasScaling().fit_prediction(prediction)
    # Of each label 1 / (n + 2) is spread over the classes.
    targets = F.one_hot(prediction.labels, 3) * (1 - 1 / 302) + 1 / (3 * 302)
    residual = scaling.scaled(prediction).probs - targets
    of_biases = residual.sum(0) + scaling.weights[1:]
    of_slope = (residual * prediction.log_probs).sum()
    torch.testing.assert_close(of_biases, torch.zeros_like(of_biases), atol=1e-3, rtol=0.0)
    torch.testing.assert_close(of_slope, tensor64(0.0), atol=1e-3, rtol=0.0)


def test_slopes_and_biases_of_classes_are_those_of_a_direct_optimum():
    """SciPy's BFGS on the penalised likelihood, written out with NumPy."""
    logits = 2 * randn64(400, 3)
    slopes = tensor64([0.5, 1.0, 1.5])
    law = torch.distributions.Categorical(logits=slopes * logits.log_softmax(-1))
    prediction = of_logits(logits, law.sample())
    log_probs = prediction.log_probs.numpy()
    # Of each label 1 / (n + 2) is spread over the classes.
    targets = np.eye(3)[prediction.labels.numpy()] * (1 - 1 / 402) + 1 / (3 * 402)

    def loss(x):
        slope, bias = x[:3], x[3:]
        scaled = special.log_softmax(slope * log_probs + bias, axis=1)
        penalty = np.square(bias).sum() + np.square(slope - slope.mean()).sum()
        residual = special.softmax(slope * log_probs + bias, axis=1) - targets
        of_slope = (residual * log_probs).sum(0) + slope - slope.mean()
        gradient = np.concatenate([of_slope, residual.sum(0) + bias])
        return penalty / 2 - (targets * scaled).sum(), gradient

    start = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    best = optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x
    scaling = VectorScaling().fit_prediction(prediction)
    torch.testing.assert_close(scaling.weights, torch.from_numpy(best), atol=1e-4, rtol=1e-4)
    expected = special.softmax(best[:3] * log_probs + best[3:], axis=1)
    scaled = scaling.scaled(prediction).probs
    torch.testing.assert_close(scaled, torch.from_numpy(expected), atol=1e-4, rtol=1e-4)


def test_a_class_without_labels_and_few_examples_give_finite_slopes():
    logits = randn64(6, 4)
    scaling = VectorScaling().fit_prediction(of_logits(logits, torch.tensor([0, 1, 0, 1, 2, 0])))
    assert scaling.weights.isfinite().all()
    assert (scaling.weights[:4] > 0).all()
    assert (scaling.scaled(of_logits(logits)).probs > 0).all()
