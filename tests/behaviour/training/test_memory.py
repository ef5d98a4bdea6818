"""Memory of a long run does not grow: the number of live tensors is that of the epochs before."""

import gc

import pyro
import pytest
import torch
from small_fit import build, data, short

from probattn import SGPAttention
from probattn.inference import fit, predict


@pytest.fixture(autouse=True)
def _count_new_objects_only():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tensors():
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


class Watched(list):
    """Batches that count the live tensors at the start of each pass."""

    def __iter__(self):
        self.counts = [*getattr(self, "counts", []), tensors()]
        return super().__iter__()


@pytest.mark.parametrize(
    "layer", [None, SGPAttention.partial(inducing=3)], ids=["kep-svgp", "sgpa"]
)
def test_training_and_prediction_do_not_grow(tmp_path, layer):
    model, guide, *_ = build(attention=layer)
    x, y = data().tensors
    batches = Watched([(x[:4], y[:4]), (x[4:], y[4:])])
    fit(model, guide, batches, [(x, y)], out=tmp_path, **short(epochs=12, kl_anneal_epochs=12))
    assert len(pyro.get_param_store()) == 0
    for _ in range(8):
        predict(model, guide, batches, num_samples=3)
    assert len(set(batches.counts[5:11])) == len(set(batches.counts[-5:])) == 1
