"""Temperature scaling against grids, L-BFGS on logits, and what it must never change."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from fitted_methods import posterior_predictive
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import Ensemble, FewExamplesWarning, Prediction, TemperatureScaling, metrics, predict
from probattn.inference.methods.temperature import TEMPERATURE_RANGE, fit_temperature, relative_error, scale
from probattn.models import Classifier, Supervised
from probattn.models.likelihoods import TokenCategorical

pytestmark = pytest.mark.filterwarnings("ignore::probattn.inference.FewExamplesWarning")

F64 = torch.float64


def of_logits(logits, labels=None):
    return Prediction(probs=logits.softmax(-1), labels=labels)


def sample(n=4000, classes=5, *, spread=2.0, sharpened=1.0):
    """A prediction too sure by the factor ``sharpened`` of labels drawn from softmax(logits)."""
    logits = spread * torch.randn(n, classes, dtype=F64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    return of_logits(sharpened * logits, labels)


def nll_at(prediction, temperature):
    return F.cross_entropy(prediction.probs.log() / temperature, prediction.labels).item()


@pytest.mark.parametrize("sharpened", [0.3, 1.0, 3.0])
def test_it_is_the_best_of_a_fine_grid(sharpened):
    prediction = sample(300, sharpened=sharpened)
    temperature = fit_temperature(prediction)
    grid = [temperature * math.exp(k / 500) for k in range(-1000, 1001)]
    best = min(grid, key=lambda each: nll_at(prediction, each))
    assert best == pytest.approx(temperature)
    assert grid.index(best) == 1000


def test_for_one_deterministic_draw_it_is_classic_temperature_scaling_of_logits():
    logits, labels = 4 * torch.randn(500, 4, dtype=F64) + 7, torch.randint(4, (500,))
    labels[:300] = logits[:300].argmax(-1)
    temperature = torch.ones((), dtype=F64, requires_grad=True)
    exact = {"tolerance_grad": 1e-13, "tolerance_change": 0.0}
    optimiser = torch.optim.LBFGS([temperature], max_iter=200, line_search_fn="strong_wolfe", **exact)

    def closure():
        optimiser.zero_grad()
        loss = F.cross_entropy(logits / temperature, labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert 1.5 < temperature.item() < 15
    assert fit_temperature(of_logits(logits, labels)) == pytest.approx(temperature.item(), rel=1e-6)
    torch.testing.assert_close(scale(of_logits(logits), 2.5).probs, (logits / 2.5).softmax(-1))


@pytest.mark.parametrize("sharpened", [0.5, 1.0, 3.0])
def test_a_model_too_sure_by_a_factor_gets_that_factor(sharpened):
    prediction = sample(40_000, sharpened=sharpened)
    temperature = fit_temperature(prediction)
    # Fisher information of β at its true value, by hand: the mean variance of log p under the true law.
    true = (prediction.probs.log() / sharpened).softmax(-1)
    scores = prediction.probs.log()
    variance = (true * scores.square()).sum(-1) - (true * scores).sum(-1).square()
    error = sharpened**2 / (40_000 * variance.mean().item()) ** 0.5
    assert abs(temperature - sharpened) < 4.5 * error
    assert error < 0.02 * sharpened


@given(
    st.lists(st.lists(st.floats(-30, 30), min_size=4, max_size=4), min_size=2, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_the_loss_on_validation_never_rises_and_no_temperature_does_better(logits, labels):
    prediction = of_logits(torch.tensor(logits, dtype=F64), torch.tensor(labels[: len(logits)]))
    temperature = fit_temperature(prediction)
    assert TEMPERATURE_RANGE[0] <= temperature <= TEMPERATURE_RANGE[1]
    if mean_confidence(prediction, 1 / temperature) > bound(len(logits)) - 1e-9:
        return  # raised, or a temperature of 1 that is not lowered
    ours = nll_at(prediction, temperature)
    tolerance = 1e-9 * (1 + abs(ours))
    for other in (1.0, *TEMPERATURE_RANGE, temperature * 0.99, temperature * 1.01):
        if TEMPERATURE_RANGE[0] <= other <= TEMPERATURE_RANGE[1]:
            assert ours <= nll_at(prediction, other) + tolerance


PROBABILITY = st.one_of(st.sampled_from([0.0, 1e-45, 1e-40, 1e-8, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))


@given(st.lists(PROBABILITY, min_size=2, max_size=6), st.floats(0.05, 20.0), st.sampled_from([torch.float32, F64]))
@settings(max_examples=400, deadline=None)
def test_the_ranking_of_classes_never_changes(weights, temperature, dtype):
    probs = torch.tensor([weights], dtype=F64)
    probs = (probs / probs.sum()).to(dtype) if probs.sum() > 1e-30 else torch.full_like(probs, 0.5, dtype=dtype)
    scaled = scale(Prediction(probs=probs), temperature).probs
    assert scaled.dtype == dtype
    assert scaled.sum().item() == pytest.approx(1, abs=1e-6)
    assert ((scaled >= 0) & (scaled <= 1)).all()
    lower = probs[0].unsqueeze(1) < probs[0].unsqueeze(0)
    assert (scaled[0].unsqueeze(1) <= scaled[0].unsqueeze(0) * (1 + 1e-14))[lower].all()


def test_ties_stay_ties_and_accuracy_its_convention():
    probs = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.0, 0.0, 1.0], [1 / 3, 1 / 3, 1 / 3]])
    labels = torch.tensor([0, 1, 2, 0])
    for temperature in TEMPERATURE_RANGE:
        scaled = scale(Prediction(probs=probs), temperature).probs
        assert metrics.accuracy(scaled, labels) == metrics.accuracy(probs, labels) == 1
        assert torch.equal(scaled == scaled.amax(-1, keepdim=True), probs == probs.amax(-1, keepdim=True))


def test_by_hand():
    scaled = scale(Prediction(probs=torch.tensor([[0.8, 0.2], [0.5, 0.5]], dtype=F64)), 2.0).probs
    assert scaled[0].tolist() == pytest.approx([2 / 3, 1 / 3])  # √0.8 : √0.2
    assert scaled[1].tolist() == [0.5, 0.5]
    assert scale(Prediction(probs=torch.tensor([[0.8, 0.2]], dtype=F64)), 0.5).probs[0, 0].item() == pytest.approx(
        0.64 / 0.68
    )


def test_temperature_one_changes_nothing():
    probs = torch.randn(50, 6, dtype=F64).softmax(-1)
    torch.testing.assert_close(scale(Prediction(probs=probs), 1.0).probs, probs, rtol=1e-14, atol=0)


def test_what_single_draws_say_is_no_longer_known():
    probs, labels = torch.tensor([[0.9, 0.1]]), torch.tensor([0])
    one = torch.ones(1)
    given = Prediction(probs=probs, expected_entropy=one, energy=one, draws=probs.unsqueeze(0), labels=labels)
    scaled = scale(given, 3.0)
    assert (scaled.expected_entropy, scaled.mutual_information, scaled.energy, scaled.draws) == (None,) * 4
    assert torch.equal(scaled.labels, labels)
    assert scaled.entropy > given.entropy


def mean_confidence(prediction, inverse):
    return (inverse * prediction.log_probs.double()).softmax(-1).amax(-1).mean().item()


def bound(examples):
    """The rule of succession after as many successes."""
    return (examples + 1) / (examples + 2)


def test_without_an_error_confidence_is_what_the_number_of_examples_supports():
    logits = torch.randn(20, 3, dtype=F64)
    right = of_logits(logits, logits.argmax(-1))
    with pytest.warns(FewExamplesWarning, match="20 examples"):
        temperature = fit_temperature(right)
    assert mean_confidence(right, 1 / temperature) == pytest.approx(21 / 22)
    sure = of_logits(40 * logits, logits.argmax(-1))
    assert mean_confidence(sure, 1.0) > 21 / 22
    assert fit_temperature(sure) == 1  # no error is no reason for less confidence either
    wrong = of_logits(logits, logits.argmin(-1))
    assert fit_temperature(wrong) == TEMPERATURE_RANGE[1]


def test_zeros_count_as_the_smallest_normal_number():
    """Without errors but one, that is certain: log p of its label is log tiny = −87.3."""
    probs = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]])
    prediction = Prediction(probs=probs, labels=torch.zeros(10, dtype=torch.long))
    expected = -math.log(torch.finfo(torch.float32).tiny) / math.log(9)  # odds of 9 to 1
    assert expected > TEMPERATURE_RANGE[1]
    assert fit_temperature(prediction) == TEMPERATURE_RANGE[1]
    probs = torch.tensor([[1.0, 0.0]] * 99_999 + [[0.0, 1.0]])
    prediction = Prediction(probs=probs, labels=torch.zeros(100_000, dtype=torch.long))
    assert fit_temperature(prediction) == pytest.approx(
        -math.log(torch.finfo(torch.float32).tiny) / math.log(99_999), rel=1e-6
    )


def test_a_predictor_is_scaled_by_what_validation_says_once():
    torch.manual_seed(0)
    network = nn.Sequential(KEPSVGPAttention(4, 2, rank=2), nn.Flatten(-2), nn.Linear(12, 3))
    model = Classifier(network, num_data=9).double()
    guide = guides.for_model(model)
    x, y = torch.randn(60, 3, 4, dtype=F64), torch.randint(3, (60,))
    plain = posterior_predictive(model, guide, num_samples=3)
    torch.manual_seed(5)
    predictor = TemperatureScaling(plain).fit([(x, y)])
    torch.manual_seed(5)
    assert predictor.temperature == fit_temperature(predict(model, guide, [(x, y)], num_samples=3))
    for seed in range(2):
        torch.manual_seed(seed)
        ours = predictor.predict(x[:5])
        torch.manual_seed(seed)
        torch.testing.assert_close(ours.probs, scale(plain.predict(x[:5]), predictor.temperature).probs)
    scaled_twice = TemperatureScaling(predictor).fit([(x, y)])
    both = TemperatureScaling(Ensemble([plain, scaled_twice])).fit([(x, y)])
    assert TEMPERATURE_RANGE[0] < both.temperature <= TEMPERATURE_RANGE[1]


def test_a_scaled_prediction_is_at_its_best_temperature():
    prediction = sample(500, sharpened=3.0)
    scaled = scale(prediction, fit_temperature(prediction))
    assert fit_temperature(scaled) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.full((2, 3), 1 / 3), None, r"these data have none: pass batches \(x, y\)"),
        (torch.zeros(0, 3), torch.zeros(0).long(), "NaN"),
        (torch.full((2, 3), 1 / 3), torch.zeros(3).long(), r"shape \(2,\), got \(3,\)"),
        (torch.full((2, 3), 1 / 3), torch.zeros(2, 3), r"shape \(2,\), got \(2, 3\)"),
        (torch.ones(2, 1), torch.zeros(2).long(), "classes ≥ 2"),
        (torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), torch.zeros(2).long(), "NaN"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0, 3]), r"lie in 0\.\.2 for 3 classes, got 0\.\.3"),
        (torch.full((2, 3), 1 / 3), torch.tensor([-1, 2]), r"lie in 0\.\.2 for 3 classes, got -1\.\.2"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0.0, 1.0]), r"integer class indices, got torch\.float32"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0.7, math.nan]).double(), r"indices, got torch\.float64"),
        (None, torch.zeros(2), "got None"),
        (torch.full((2, 4, 3), 1 / 3), torch.zeros(2, 4).long(), r"\(2, 4, 3\)"),
    ],
)
def test_what_cannot_be_fitted_is_named(probs, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(Prediction(probs=probs, labels=labels))


def test_tokens_are_refused():
    model = Supervised(nn.Linear(4, 3), TokenCategorical(), num_data=9)
    with pytest.raises(ValueError, match="classes ≥ 2"):
        scale(predict(model, guides.for_model(model), torch.randn(2, 5, 4)), 2.0)


def test_validation_without_an_error_does_not_ruin_the_likelihood_of_other_data():
    """A calibrated network that is right in 19 of 20 cases has no error among 30 examples in one case of five."""
    source = torch.Generator().manual_seed(0)
    logits = 12 * torch.randn(6000, 3, dtype=F64, generator=source)
    labels = logits.softmax(-1).multinomial(1, generator=source)[:, 0]
    right = logits.argmax(-1) == labels
    assert 0.9 < right.double().mean() < 0.98
    parts = [part for part in torch.arange(3000).split(30) if right[part].all()]
    assert len(parts) > 5
    test = of_logits(logits[3000:], labels[3000:])
    before, unbounded = nll_at(test, 1.0), nll_at(test, TEMPERATURE_RANGE[0])
    assert unbounded > 10 * before
    for part in parts:
        assert nll_at(test, fit_temperature(of_logits(logits[part], labels[part]))) < 2 * before


@pytest.mark.parametrize(("examples", "warns"), [(10, True), (2000, False)])
def test_an_uncertain_temperature_is_said_with_its_standard_error(examples, warns):
    source = torch.Generator().manual_seed(1)
    logits = torch.randn(examples, 3, dtype=F64, generator=source)
    prediction = of_logits(logits, logits.softmax(-1).multinomial(1, generator=source)[:, 0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_temperature(prediction)
    assert [each.category for each in caught] == [FewExamplesWarning] * warns


def test_the_standard_error_is_that_of_repeated_samples():
    logits = torch.randn(300, 4, dtype=F64, generator=torch.Generator().manual_seed(2))
    source = torch.Generator().manual_seed(3)
    labels = (logits.softmax(-1).multinomial(1, generator=source)[:, 0] for _ in range(300))
    repeated = [math.log(fit_temperature(of_logits(logits, each))) for each in labels]
    expected = relative_error(logits.log_softmax(-1), 1.0)
    assert torch.tensor(repeated).std().item() == pytest.approx(expected, rel=0.15)
