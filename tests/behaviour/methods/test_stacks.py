"""Predictors around predictors: each adds its outputs and keeps those of the predictor inside."""

import itertools

import pytest
import torch
from small_vit import TRAIN, X, classifier

from probattn.inference import (
    SVDKL,
    Ensemble,
    Laplace,
    MCDropout,
    PosteriorPredictive,
    RiskThreshold,
    TemperatureScaling,
    conformal,
    export,
    mean_network,
    predictor_network,
)
from probattn.inference.prediction.class_labels import entropy

NEW = X[:7] + 0.1
# Each decision with its key, as a function of the predictor inside.
DECISIONS = {
    "accepted": lambda inside: RiskThreshold(inside, target=0.8),
    "set": lambda inside: conformal.LAC(inside, alpha=0.3),
}
ORDERS = list(itertools.permutations(["accepted", "set", "temperature"]))


@pytest.fixture(scope="module")
def network():
    return predictor_network(*classifier(), num_samples=3)


@pytest.mark.parametrize(
    ("order", "exported"),
    [
        *((order, False) for order in ORDERS),
        (ORDERS[0], True),
        (ORDERS[-1], True),
        *(pytest.param(order, True, marks=pytest.mark.slow) for order in ORDERS[1:-1]),
    ],
)
def test_a_stack_in_any_order_has_the_outputs_of_all_also_exported(
    network, order, exported, tmp_path
):
    stack, expected = network, dict(network(NEW))
    for name in order:
        kind = DECISIONS.get(name, TemperatureScaling)
        stack = kind(stack).fit(TRAIN)
        if name == "temperature":
            scaled = stack.predict(NEW).probs
            expected |= {"probs": scaled, "entropy": entropy(scaled)}
        elif name == "set":
            expected["set"] = stack.sets(expected["probs"])
        else:
            expected["accepted"] = stack.accepts(expected["probs"])
    for undefined in ("energy", "expected_entropy"):  # of scaled probabilities
        expected.pop(undefined)
    if exported:
        export(tmp_path / "stack.pt2", stack, X[:2])
        stack = torch.export.load(tmp_path / "stack.pt2").module()
    outputs = stack(NEW)
    assert outputs.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(outputs[key], value, rtol=1e-4, atol=1e-5)


def test_scaling_keeps_the_mutual_information_of_the_samples(network):
    plain = network.predict(TRAIN)
    scaled = TemperatureScaling(TemperatureScaling(network).fit(TRAIN)).fit(TRAIN).predict(TRAIN)
    assert not torch.equal(plain.probs, scaled.probs)
    assert torch.equal(scaled.mutual_information, plain.mutual_information)
    assert scaled.mutual_information.mean() > 0


def test_what_is_not_known_is_an_error_that_names_the_cause():
    point = TemperatureScaling(mean_network(*classifier())).fit(TRAIN).predict(NEW)
    assert point.mutual_information is None
    for name in ("mutual_information", "energy", "expected_entropy"):
        with pytest.raises(ValueError, match="method"):
            point.require(name)


def test_mixed_scaled_members_have_no_mutual_information_of_one_of_them(network):
    member = TemperatureScaling(network).fit(TRAIN)
    for refine in (None, 0.5):
        mixed = Ensemble([member, TemperatureScaling(member).fit(TRAIN)], refine=refine)
        assert mixed.predict(NEW).mutual_information is None


def test_two_decisions_of_one_name_are_an_error(network):
    inside = conformal.ByClass(network, alpha=0.3).fit(TRAIN)
    with pytest.raises(ValueError, match="set"):
        DECISIONS["set"](TemperatureScaling(inside).fit(TRAIN)).fit(TRAIN)(NEW)


@pytest.mark.parametrize("method", [lambda inside: Ensemble([inside]), Laplace, MCDropout])
def test_methods_that_make_probabilities_of_their_own_refuse_decisions_inside(network, method):
    inside = DECISIONS["accepted"](network)
    for stack in (inside, TemperatureScaling(inside)):
        with pytest.raises((TypeError, ValueError), match="around"):
            method(stack)


def sampled():
    return PosteriorPredictive(*classifier(), num_samples=3)


@pytest.mark.parametrize(
    ("build", "culprit", "advice"),
    [
        (lambda network: MCDropout(sampled()), "MCDropout", "predictor_network"),
        (
            lambda network: TemperatureScaling(MCDropout(sampled())),
            "MCDropout",
            "predictor_network",
        ),
        (lambda network: Ensemble([network, MCDropout(sampled())]), "MCDropout", "masks"),
        (lambda network: sampled(), "PosteriorPredictive", "predictor_network"),
        (lambda network: Laplace(sampled()), "PosteriorPredictive", "predictor_network"),
        (SVDKL, "SVDKL", "Laplace"),
        (lambda network: Ensemble([network] * 2, refine=0.5), "Ensemble", "refine"),
        (lambda network: conformal.CQR(network, alpha=0.1), "CQR", "Normalised"),
    ],
)
def test_what_no_program_can_hold_is_refused_with_what_to_export_in_its_place(
    network, build, culprit, advice, tmp_path
):
    """Also in a module of one's own; nothing is written."""
    for whole in (build(network), torch.nn.Sequential(build(network))):
        with pytest.raises(TypeError, match=f"{culprit} cannot be exported: .*{advice}"):
            export(tmp_path / "stack.pt2", whole, X[:2])
    assert list(tmp_path.iterdir()) == []


def test_mc_dropout_of_stored_samples_is_refused(network):
    with pytest.raises(TypeError, match="PosteriorPredictive"):
        MCDropout(network)
