"""Labels and batches that cannot be right are refused in prediction and in training, with what is wrong."""

import pytest
import torch
from torch import nn

from probattn import guides
from probattn.inference import TrainOptions, fit, predict
from probattn.inference.batches import unpack_batch
from probattn.inference.prediction.class_labels import class_labels
from probattn.models import Classifier, Supervised
from probattn.models.likelihoods import Gaussian

X, Y = torch.randn(8, 4), torch.arange(8) % 3


def classifier():
    return Classifier(nn.Linear(4, 3), num_data=8)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((X, Y[:1]), "8 inputs and labels of shape"),
        ((X, Y, torch.ones(7, 4, dtype=torch.bool)), "8 inputs and mask of shape"),
        ((X[:0], Y[:0]), "empty"),
        ({"x": X[:0], "y": Y[:0]}, "empty"),
    ],
)
def test_batches_of_unequal_lengths_and_empty_ones_are_refused_everywhere(batch, words):
    model = classifier()
    with pytest.raises(ValueError, match=words):
        unpack_batch(batch)
    with pytest.raises(ValueError, match=words):
        predict(model, None, [batch])
    with pytest.raises(ValueError, match=words):
        fit(model, guides.for_model(model), [batch], options=TrainOptions(epochs=1), progress=False)


def test_labels_in_one_of_two_batches_are_refused():
    with pytest.raises(TypeError, match="expected Tensor"):
        predict(classifier(), None, [(X, Y), (X,)])
    with pytest.raises(TypeError, match="expected Tensor"):
        predict(classifier(), None, [(X,), (X, Y)])


def test_class_labels_of_another_shape_are_refused_with_advice():
    column, one_hot = Y[:, None], nn.functional.one_hot(Y)
    for refuse in (
        lambda labels: class_labels(labels, examples=8, classes=3),
        lambda labels: predict(classifier(), None, [(X, labels)]),
    ):
        for labels in (column, one_hot):
            with pytest.raises(ValueError, match=r"squeeze\(1\) of a column, or labels.argmax\(-1\)"):
                refuse(labels)


def test_labels_of_numbers_that_would_broadcast_are_refused():
    model = Supervised(nn.Linear(4, 1), Gaussian(), num_data=8)
    assert predict(model, None, [(X, torch.zeros(8, 1))]).labels.shape == (8, 1)
    with pytest.raises(ValueError, match=r"labels of shape \(8, 1\)"):
        predict(model, None, [(X, torch.zeros(8))])
