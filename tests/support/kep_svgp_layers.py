"""KEP-SVGP layers of 12 dimensions and 3 heads, the same at each call."""

import torch

from probattn import KEPSVGPAttention


def layer_of(dim=12, heads=3, **options):
    torch.manual_seed(0)
    return KEPSVGPAttention(dim, heads, **{"rank": 2, **options}).double()
