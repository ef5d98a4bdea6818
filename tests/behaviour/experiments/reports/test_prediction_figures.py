"""Figures of predictions of classes, read back from their artists."""

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

from probattn.experiments.plots import prediction_figures, style
from probattn.inference import Prediction, metrics

CONFIDENCE = torch.tensor([0.95, 0.95, 0.75, 0.55])
PROBS = torch.stack([CONFIDENCE, 1 - CONFIDENCE], 1).double()
LABELS = torch.tensor([0, 1, 0, 1])  # right, wrong, right, wrong
TEST = Prediction(probs=PROBS, labels=LABELS)


def test_reliability_bars_are_accuracy_and_the_gap_to_confidence():
    top, below = prediction_figures.reliability(TEST).axes
    accuracy, gap = top.containers
    assert [bar.get_height() for bar in accuracy] == [0, 1, 0.5]
    ends = [bar.get_y() + bar.get_height() for bar in gap]
    assert ends == pytest.approx([0.55, 0.75, 0.95])
    assert [bar.get_height() for bar in below.patches] == [1, 1, 2]


def test_risk_coverage_is_the_metrics_curve_with_the_best_possible_order():
    figure = prediction_figures.risk_coverage({"a": TEST, "b": Prediction(probs=PROBS, labels=1 - LABELS)})
    curve, ideal, other, *_ = figure.axes[0].lines
    coverage, risk = metrics.risk_coverage(PROBS, LABELS)
    np.testing.assert_allclose(curve.get_xydata(), torch.stack([coverage, risk], 1))
    np.testing.assert_allclose(ideal.get_ydata(), [0, 0, 1 / 3, 0.5])
    assert curve.get_color() != other.get_color()


def test_confusion_counts_stand_in_their_cells_and_absent_classes_have_none():
    counts = pd.DataFrame([[2, 1, 0], [0, 0, 0], [0, 3, 4]], index=list("abc"), columns=list("abc"))
    (ax,) = prediction_figures.confusion(counts).axes
    assert {text.get_position(): text.get_text() for text in ax.texts} == {
        **{(0, 0): "2", (1, 0): "1"},
        **{(1, 2): "3", (2, 2): "4"},
    }
    assert [label.get_text() for label in ax.get_yticklabels()] == list("abc")


def test_any_name_is_visible_text():
    names = ("\x01", "\x1b[31mred\x1b[0m", "\u202edcba", "\udcff", "a\nb\r\x85c", "\ufffe", "_$x$ \\ _^{}%&#~<>|`*")
    drawn = style.to_svg(prediction_figures.risk_coverage(dict.fromkeys(names, TEST))).decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff\ufffe]", drawn)
    ElementTree.fromstring(drawn)
