"""A vision transformer of 8 dimensions on images of 4 × 4 pixels, and images for it."""

import torch

from probattn import KEPSVGPAttention, guides
from probattn.models import Classifier, ViT

SIZES = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3}
SIZES |= {"dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}
X, Y = torch.linspace(-2, 2, 60 * 16).sin().view(60, 1, 4, 4), torch.arange(60) % 3
TRAIN = [(X[:40], Y[:40]), (X[40:], Y[40:])]


def small_vit(attention, **changes):
    return ViT(**SIZES | {"attention": attention} | changes)


def classifier(seed=0):
    """A classifier of these images with dropout, and its guide."""
    torch.manual_seed(seed)
    attention = KEPSVGPAttention.partial(rank=2, multiple=2)
    model = Classifier(small_vit(attention, dropout=0.2), num_data=60)
    return model, guides.for_model(model)
