"""A small model of images with a guide, built alike in several processes."""

import torch

from probattn import KEPSVGPAttention, guides
from probattn.models import Classifier, ViT


def build(*, dim=8, heads=2, seed=0):
    """Build the model and its guide with weights from a seed."""
    torch.manual_seed(seed)
    options = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "depth": 1, "mlp_dim": 8}
    layer = KEPSVGPAttention.partial(rank=2, multiple=2)
    model = Classifier(ViT(dim=dim, heads=heads, attention=layer, **options), num_data=10)
    return model, guides.for_model(model)
