"""Histograms of confidence: shares of each group, whatever its size."""

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from probattn.experiments.plots.ood import confidence
from probattn.experiments.plots.style import BLUE, ORANGE, PURPLE
from probattn.inference.prediction.result import Prediction


def sure(*values, right=None):
    """Return two-class predictions of class 0 with these confidences, and labels if ``right`` is given."""
    top = torch.tensor(values)
    labels = None if right is None else 1 - torch.tensor(right, dtype=torch.long)
    return Prediction(probs=torch.stack([top, 1 - top], 1), labels=labels)


INSIDE = sure(0.99, 0.98, 0.97, 0.91, 0.62, right=[1, 1, 1, 1, 0])
OOD = sure(0.52, 0.57, 0.58, 0.96)


def shares(ax):
    """Return the share of each bin of 5 %, by the colour of the group."""
    found = {}
    for patch in ax.patches:
        corners = patch.get_path().vertices
        found[to_hex(patch.get_edgecolor() if not patch.get_fill() else patch.get_facecolor())] = {
            round(20 * middle) / 20: height
            for middle, height in zip((corners[1:-1:2, 0]).tolist(), corners[1:-1:2, 1].tolist(), strict=True)
            if height > 0
        }
    return found


def test_each_group_is_a_share_of_its_own():
    (ax,) = confidence(INSIDE, {"letters": OOD}).axes
    found = shares(ax)
    assert found[BLUE] == pytest.approx({0.95: 3 / 4, 0.9: 1 / 4})
    assert found[ORANGE] == pytest.approx({0.6: 1})
    assert found[PURPLE] == pytest.approx({0.5: 1 / 4, 0.55: 2 / 4, 0.95: 1 / 4})
    assert ax.get_ylim()[1] >= 1


def test_title_has_the_auroc_and_the_counts():
    # Of 5 × 4 pairs, the known one is surer in all but (0.91, 0.96), (0.62, 0.96): 18.
    (ax,) = confidence(INSIDE, {"letters": OOD}).axes
    assert ax.get_title(loc="left") == "letters: AUROC 90.0\u00a0%\n4 OOD, 4 right, 1 wrong"


def test_confidence_rounded_to_above_one_is_counted():
    above = Prediction(probs=torch.tensor([[1 + 1.2e-7, 0.0]]), labels=torch.tensor([0]))
    (ax,) = confidence(above, {"x": above}).axes
    assert shares(ax)[BLUE] == {0.95: 1}
    assert shares(ax)[PURPLE] == {0.95: 1}


def test_a_panel_per_set_on_one_scale():
    figure = confidence(INSIDE, {f"set {number}": OOD if number else INSIDE for number in range(5)})
    assert [ax.get_title(loc="left").split(":")[0] for ax in figure.axes] == [f"set {number}" for number in range(5)]
    assert "AUROC 50.0" in figure.axes[0].get_title(loc="left")


def test_panels_have_the_scale_of_the_tallest():
    spread = sure(0.9, 0.8, 0.7, 0.6, right=[1, 1, 1, 1])
    figure = confidence(spread, {"low": spread, "tall": sure(0.7, 0.7)})
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert figure.axes[0].get_ylim()[1] >= 1


def test_without_wrong_answers_or_sets():
    right = sure(0.9, 0.8, right=[1, 1])
    (ax,) = confidence(right, {"x": OOD}).axes
    assert set(shares(ax)) == {BLUE, PURPLE}
    assert confidence(INSIDE, {}) is None


def test_nothing_is_cut_or_lies_on_something_else():
    names = ("svhn", "cifar100", "lsun-crop", "lsun-resize", "textures", "tinyimagenet-crop-of-a-long-name")
    figure = confidence(INSIDE, dict.fromkeys(names, OOD))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [ax.get_tightbbox(renderer) for ax in figure.axes]
    for number, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
