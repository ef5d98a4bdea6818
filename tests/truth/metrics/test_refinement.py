"""NLL = refinement + calibration, against SciPy and invariances."""

import pytest
import torch

from probattn.inference.metrics import nll
from probattn.inference.metrics.refinement import fit_scaling, refined_log_probs

N, CLASSES = 400, 3


def labelled(temperature=1.0):
    """Probabilities and labels drawn from them at another temperature."""
    logits = 2 * torch.randn(N, CLASSES, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    return (logits / temperature).softmax(-1), labels


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_a_temperature_leaves_the_refinement(temperature):
    probs, labels = labelled()
    scaled = (probs.log() / temperature).softmax(-1)
    refined = refined_log_probs(probs, labels)
    torch.testing.assert_close(refined_log_probs(scaled, labels), refined, rtol=1e-3, atol=1e-3)


def test_each_example_is_refined_by_the_others_alone():
    probs, labels = labelled()
    refined = refined_log_probs(probs, labels)
    changed = labels.clone()
    changed[0] = (labels[0] + 1) % CLASSES
    again = refined_log_probs(probs, changed)
    same = again == refined
    # The fold of example 0 alone keeps its fit: a fifth of the examples, but for its own label.
    assert int(same.sum()) == N // 5 - 1


def test_refinement_and_calibration_are_the_loss_of_an_overconfident_model():
    """Labels drawn at T = 1 from a model that says T = ½: the refinement is that of T = 1."""
    probs, labels = labelled(temperature=0.5)
    truth = (probs.log() * 0.5).softmax(-1)
    differences = -refined_log_probs(probs, labels) + truth.gather(1, labels[:, None])[:, 0].log()
    # Five fits of three free parameters, each with an expected excess of 3 / (2 · 0.8 N).
    error = differences.std() / N**0.5
    assert abs(differences.mean() - 1.9 / N) <= 5 * error + 1.9 / N
    assert nll(probs, labels) > -refined_log_probs(probs, labels).mean()


def test_a_class_without_examples_has_a_finite_bias():
    probs, labels = labelled()
    assert fit_scaling(probs.log(), labels.clamp(max=1)).bias.isfinite().all()


def test_examples_without_an_error_have_a_finite_slope():
    """All labels are the most probable class, so that without doubt the best slope is infinite."""
    probs, _ = labelled()
    certain = 10 * probs.log()
    assert fit_scaling(certain, probs.argmax(1)).slope < 5
    assert fit_scaling(100 * certain, probs.argmax(1)).slope < 0.1


def test_the_scaling_of_tensors_without_gradients_is_the_same():
    """Predictions are often made in one of these modes, and fits may be, too."""
    probs, labels = labelled()
    expected = fit_scaling(probs.log(), labels)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            log_probs = probs.log()
            copied = labels.clone()
            inside = fit_scaling(log_probs, copied)
        for scaling in (inside, fit_scaling(log_probs, copied)):
            torch.testing.assert_close(scaling, expected)
