"""Operations of a captured step, each of which is a kernel on a GPU: no layer gets many more of them unseen."""

import pyro
import pytest
import torch
from attention_layers import LAYERS
from elbos import TraceMeanField_ELBO
from operations import Operations

from probattn import guides
from probattn.functional import errors
from probattn.inference import TrainOptions
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.models import Classifier, ViT

MOST = {
    "softmax": 80,
    "softmax-dropout": 105,
    "kernel": 130,
    "kernel-ard-symmetric": 130,
    "kernel-exponential": 125,
    "kep-svgp": 275,
    "kep-svgp-plain": 265,
    "kep-svgp-svd": 770,
    "kep-svgp-residual": 535,
    "kep-svgp-svd-residual": 875,
    "kep-svgp-mean": 350,
    "kep-svgp-laplace": 295,
    "kep-svgp-student-t": 300,
    "kep-svgp-authors": 285,
    "sgpa": 430,
    "sgpa-joint": 430,
    "sgpa-standard": 245,
    "sgpa-standard-joint": 245,
    "cgp": 595,
    "cgp-collapsed": 415,
    "cgp-paper": 455,
    "cgp-prior": 470,
    "cgp-collapsed-mean": 400,
    "cgp-learned": 550,
    "sparse-cgp": 835,
    "sparse-cgp-collapsed": 560,
    "sparse-cgp-prior": 690,
    "sparse-cgp-collapsed-mean": 540,
    "sparse-cgp-learned": 880,
    "kep-svgp-concat": 280,
    "kep-svgp-concat-lowrank": 285,
    "sparse-cgp-tokens": 835,
}
"""Ceilings of forward and backward pass of a network of one block, a few more than there are."""


IN_EVERY_RUN = ("softmax", "kep-svgp", "kep-svgp-concat", "sgpa", "cgp")


def operations_of(layer):
    torch.manual_seed(0)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 8}
    model = Classifier(ViT(depth=1, attention=LAYERS[layer], **sizes), num_data=10)
    elbo = TraceMeanField_ELBO()
    module = elbo(model, guides.for_model(model)).train()
    objective = Objective(module, elbo, options=TrainOptions(), num_data=10)
    batch = torch.randn(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)
    with pyro.validation_enabled(False), errors.deferred(), Operations() as operations:
        objective(batch, StepCoefficients(*torch.ones(3))).backward()
    return len(operations.names)


@pytest.mark.parametrize(
    "layer", [pytest.param(each, marks=() if each in IN_EVERY_RUN else pytest.mark.slow) for each in LAYERS]
)
def test_a_step_asks_for_few_kernels(layer):
    assert operations_of(layer) <= MOST[layer]


def test_an_operation_that_writes_counts_and_a_view_does_not():
    x = torch.ones(3)
    with Operations() as operations:
        (x.view(3, 1).expand(3, 2) + 1).mul_(2)
    assert operations.names == ["aten::add.Tensor", "aten::mul_.Tensor"]
