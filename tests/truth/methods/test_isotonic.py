"""Isotonic scaling against scikit-learn's regression, and what it keeps."""

import numpy as np
import torch
from float64 import randn64, tensor64
from sklearn.isotonic import IsotonicRegression

from probattn.inference import IsotonicScaling, Prediction


def overconfident(n, *, classes=4):
    """Probabilities of logits that are three times those of the labels' law."""
    logits = 1.5 * randn64(n, classes)
    labels = torch.distributions.Categorical(logits=logits).sample()
    return Prediction(probs=(3 * logits).softmax(-1), labels=labels)


def test_probabilities_are_those_of_scikit_learn_and_a_share_of_the_old_ones():
    known, new = overconfident(200), overconfident(300)
    extremes = tensor64([[1.0, 0.0, 0.0, 0.0], [0.25] * 4])  # outside of what was fitted
    new = Prediction(probs=torch.cat([new.probs, extremes]))
    is_label = np.eye(4)[known.labels.numpy()]
    regression = IsotonicRegression(out_of_bounds="clip")
    regression.fit(known.probs.numpy().ravel(), is_label.ravel())
    for prediction in (known, new):
        probs = prediction.probs.numpy()
        mixed = regression.predict(probs.ravel()).reshape(probs.shape) + probs / 202
        expected = torch.from_numpy(mixed / mixed.sum(1, keepdims=True))
        scaled = IsotonicScaling().fit_prediction(known).scaled(prediction)
        torch.testing.assert_close(scaled.probs, expected, rtol=1e-9, atol=1e-12)


def test_the_order_of_classes_stays_and_no_class_becomes_impossible():
    known, new = overconfident(100), overconfident(500)
    scaled = IsotonicScaling().fit_prediction(known).scaled(new).probs
    assert torch.equal(scaled.argsort(1), new.probs.argsort(1))
    assert (scaled > 0).all()


def test_equal_probabilities_of_all_classes_stay_equal():
    equal = Prediction(probs=torch.full((5, 2), 0.5), labels=torch.tensor([0, 1, 1, 1, 1]))
    scaled = IsotonicScaling().fit_prediction(equal).scaled(equal)
    assert torch.equal(scaled.probs, equal.probs)
