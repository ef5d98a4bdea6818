"""What the first batch shows: the scale of the noise, and labels and dimensions that do not fit."""

import math

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Classifier, Supervised, ViT, likelihoods

X = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(0))
TARGETS = 50 * X.mean((1, 2))[:, None] + 300
CLASSES = (TARGETS[:, 0] > 300).long()


class Network(nn.Module):
    def __init__(self, pool, outputs):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 2, rank=2)
        self.head, self.pool = nn.Linear(4, outputs), pool

    def forward(self, x):
        return self.head(self.pool(self.attention(x)))


def trained(model, y, *, valid=None, **options):
    torch.manual_seed(0)
    guide = guides.for_model(model)
    options = TrainOptions(**{"epochs": 1, "lr": 1e-6, "min_lr": 0.0, "seed": 0} | options)
    return fit(model, guide, [(X, y)], valid, options=options, progress=False), guide


@pytest.mark.parametrize("pool", [lambda z: z.mean(1), lambda z: z[:, 0]], ids=["mean", "first"])
def test_a_network_that_indexes_from_the_left_is_an_error_in_validation(pool):
    """Training has one posterior sample per example, and no dimension of samples that it could confuse."""
    model = Classifier(Network(pool, 2), num_data=8)
    with pytest.raises(ValueError, match="index from the right"):
        trained(model, CLASSES, valid=[(X, CLASSES)])


def test_a_network_that_indexes_from_the_right_trains():
    model = Classifier(Network(lambda z: z.mean(-2), 2), num_data=8)
    history, guide = trained(model, CLASSES, valid=[(X, CLASSES)])
    assert len(history.epochs) == 1
    assert predict(model, guide, X, num_samples=3).probs.shape == (8, 2)


def test_noise_starts_at_the_deviation_of_the_training_labels():
    model = Supervised(Network(lambda z: z.mean(-2), 1), likelihoods.Gaussian(), num_data=8)
    trained(model, TARGETS)
    assert math.isclose(model.likelihood.log_scale.exp().item(), TARGETS.std(correction=0).item(), rel_tol=1e-4)


def test_noise_that_was_given_stays():
    model = Supervised(Network(lambda z: z.mean(-2), 1), likelihoods.Gaussian(1.0), num_data=8)
    trained(model, TARGETS)
    assert math.isclose(model.likelihood.log_scale.exp().item(), 1.0, rel_tol=1e-4)


def test_labels_out_of_range_and_a_missing_batch_dimension_are_named():
    model = Classifier(Network(lambda z: z.mean(-2), 2), num_data=8)
    with pytest.raises(ValueError, match="labels must lie in 0..1 for 2 classes, got 2..3"):
        trained(model, CLASSES + 2)
    network = ViT(
        image_size=4, patch_size=2, channels=1, classes=2, dim=4, depth=1, heads=2, mlp_dim=4, attention="kep-svgp"
    )
    model = Classifier(network, num_data=8)
    with pytest.raises(ValueError, match=r"add the batch dimension, images.unsqueeze\(0\)"):
        predict(model, guides.for_model(model), torch.zeros(1, 4, 4))


def test_a_seed_repeats_a_prediction_and_leaves_the_global_generator():
    model = Classifier(Network(lambda z: z.mean(-2), 2), num_data=8)
    guide = guides.for_model(model)
    state = torch.get_rng_state()
    one, same, other = (predict(model, guide, X, num_samples=2, seed=seed).probs for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(predict(model, guide, X, num_samples=2).probs, one)
