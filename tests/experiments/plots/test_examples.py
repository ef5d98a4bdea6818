"""Figures of single examples: which are drawn, and their probabilities."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from probattn.experiments.plots import examples
from probattn.experiments.plots.style import BLUE, ORANGE


def gallery_indices(figure):
    return [int(ax.images[0].get_array().flat[0]) for ax in figure.axes if ax.images]


@pytest.mark.parametrize("channels", [1, 3])
def test_gallery_shows_exactly_the_most_uncertain_and_the_most_confidently_wrong(result, channels):
    run = result(channels=channels)
    p = run.probs.double().numpy()
    entropy = -(p * np.log(p)).sum(-1)
    expected = np.argsort(-entropy)[:12].tolist()
    assert examples.most_uncertain(run.probs) == expected
    figure = examples.gallery(run.images, run.probs, run.labels, run.classes, expected)
    assert gallery_indices(figure) == expected

    confidence, answer = p.max(-1), p.argmax(-1)
    wrong = [i for i in np.argsort(-confidence) if answer[i] != run.labels[i]][:12]
    assert len(wrong) == 12
    assert examples.most_confidently_wrong(run.probs, run.labels) == wrong
    figure = examples.gallery(run.images, run.probs, run.labels, run.classes, wrong)
    assert gallery_indices(figure) == wrong
    for cell, bars, index in zip(figure.subfigs, figure.axes[1::2], wrong, strict=True):
        true, predicted = int(run.labels[index]), int(answer[index])
        assert cell.get_suptitle() == f"true: class {true}, predicted: class {predicted}"
        assert [bar.get_width() for bar in bars.patches] == pytest.approx(p[index].tolist())
        assert to_hex(bars.patches[true].get_facecolor()) == BLUE.lower()
        assert to_hex(bars.patches[predicted].get_facecolor()) == ORANGE.lower()


def test_ties_in_the_gallery_keep_the_order_of_the_data():
    probs = torch.full((5, 2), 0.5)
    assert examples.most_uncertain(probs, 3) == [0, 1, 2]
    assert examples.most_confidently_wrong(probs, torch.tensor([1, 0, 1, 0, 1]), 2) == [0, 2]


def test_gallery_keeps_colours():
    image = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    image[0, 0] = 200  # red
    ax = examples.gallery(image, torch.tensor([[0.9, 0.1]]), torch.tensor([1]), "ab", [0]).axes[0]
    assert ax.images[0].get_array()[0, 0].tolist() == [200, 0, 0]


def test_gallery_of_many_classes_shows_the_five_likeliest(result):
    run = result(classes=100)
    bars = examples.gallery(run.images, run.probs, run.labels, run.classes, [7]).axes[1]
    top = run.probs[7].topk(5)
    assert [bar.get_width() for bar in bars.patches] == pytest.approx(top.values.tolist())
    assert [text.get_text() for text in bars.get_yticklabels()] == [f"class {c}" for c in top.indices.tolist()]


def test_without_indices_there_is_no_figure():
    assert examples.gallery(torch.zeros(2, 1, 4, 4), torch.eye(2), torch.arange(2), "ab", []) is None
