"""Loaders that cannot be trained on, or predicted: the error says what a loader needs."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from probattn import guides
from probattn.inference import (
    PosteriorPredictive,
    TemperatureScaling,
    TrainOptions,
    fit,
    predict,
    refit_guide,
)
from probattn.models import Classifier

X, Y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
GOOD = [(X[:3], Y[:3]), (X[3:], Y[3:])]
PARTLY = [(X[:3], Y[:3]), (X[3:],)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def modules():
    model = Classifier(nn.Linear(4, 3), num_data=6)
    return model, guides.for_model(model)


def trained(train, valid=None):
    return fit(*modules(), train, valid, options=TrainOptions(epochs=2), progress=False)


LOADERS = {
    "a generator": (lambda: (batch for batch in GOOD), "again"),
    "an iterator": (lambda: iter(GOOD), "again"),
    "a number": (lambda: 3, "loader"),
    "a data set": (lambda: TensorDataset(X, Y), "loader"),
    "one batch": (lambda: (X, Y), "labels"),
    "no labels": (lambda: [{"input_ids": X}], "labels"),
    "nothing": (lambda: None, "loader"),
    "no batches": (list, "no batches"),
    "no examples": (lambda: DataLoader(TensorDataset(X[:0], Y[:0])), "no batches"),
    "a last batch that is dropped": (
        lambda: DataLoader(TensorDataset(X, Y), 16, drop_last=True),
        "no batches",
    ),
    "no length": (lambda: DataLoader(Stream(), batch_size=3), "length"),
    "labels in some batches": (lambda: PARTLY, "labels"),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_that_cannot_be_read_in_each_epoch_is_refused(kind):
    make, words = LOADERS[kind]
    with pytest.raises((TypeError, ValueError), match=words):
        trained(make())
    if kind == "no length":  # which validation does not need
        assert len(trained(GOOD, make()).epochs) == 2
    elif kind != "nothing":
        with pytest.raises((TypeError, ValueError), match=words):
            trained(GOOD, make())


def test_methods_need_labels_in_all_batches_and_a_refit_reads_more_than_once():
    model, guide = modules()
    with pytest.raises(TypeError, match="only some batches have labels"):
        TemperatureScaling(PosteriorPredictive(model, guide)).fit(PARTLY)
    for data, words in (((batch for batch in GOOD), "again"), ([], "no batches")):
        with pytest.raises((TypeError, ValueError), match=words):
            refit_guide(model, guide, data)
    assert len(predict(model, guide, (batch for batch in GOOD))) == 6  # once is enough
