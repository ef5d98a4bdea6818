"""Reference implementation, without Pyro, of the loss of a ViT with KEP-SVGP attention: baseline of the cost of SVI.

Modules are taken out of the model once; a step runs no Pyro module and no effect handler.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.families import Full
from probattn.functional import kep_svgp, ksvd
from probattn.guides import Guide
from probattn.models import Classifier
from probattn.models.blocks import Block
from probattn.models.vit import patches


def loss(model: Classifier, guide: Guide) -> Callable[[Tensor, Tensor], Tensor]:
    """Return −ELBO/N as a function of a batch ``(x, y)``; values and gradients equal those of SVI from the same seed.

    Args:
        model: ViT whose attention layers are softmax attention, or KEP-SVGP attention with the default prior.
        guide: guide of the model, of the family ``full``.
    """
    network, num_data = model.network, model.num_data
    embed, positions, dropout, size = network.embed, network.positions, network.dropout, network.patch_size
    norm, head = network.norm, network.head
    layers = [
        _KEPSVGP(block.attention, guide.get_submodule(f"network.blocks.{number}.attention.u"))
        if isinstance(block.attention, KEPSVGPAttention)
        else _Softmax(block.attention)
        for number, block in enumerate(network.blocks)
    ]
    blocks = [_block(block) for block in network.blocks]

    def value(x: Tensor, y: Tensor) -> Tensor:
        samples = [layer.sample(len(x)) for layer in layers]  # before the network's dropout, like a guide
        x = dropout(embed(patches(x, size)) + positions)
        penalty = 0.0
        for layer, run, (u, _) in zip(layers, blocks, samples, strict=True):
            x, added = run(x, layer, u)
            penalty = penalty + added
        return F.cross_entropy(head(norm(x.mean(-2))), y) + penalty + sum(kl for _, kl in samples) / num_data

    return value


class _Softmax:
    def __init__(self, layer: SoftmaxAttention) -> None:
        self.query_key_value, self.out, self.split = layer.query_key_value, layer.out, layer.split_heads

    def sample(self, batch: int) -> tuple[None, float]:
        return None, 0.0

    def __call__(self, x: Tensor, u: None) -> tuple[Tensor, float]:
        attended = F.scaled_dot_product_attention(*self.split(self.query_key_value(x), 3))
        return self.out(SoftmaxAttention.join_heads(attended)), 0.0


class _KEPSVGP:
    def __init__(self, layer: KEPSVGPAttention, posterior: Full) -> None:
        self.query_key, self.projection, self.merge = layer.query_key, layer.projection, layer.merge
        self.out, self.heads = layer.out, layer.heads
        self.log_scale, self.eta = layer.log_scale, layer.eta
        self.loc, self.raw_tril = posterior.loc, posterior.raw_tril

    def sample(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return u = Λ (m + L ε) for each example, ``(batch, H, s, s)``, and KL(q(u) ‖ p(u))."""
        loc, raw = self.loc, self.raw_tril
        tril = raw.tril(-1) + F.softplus(raw.diagonal(dim1=-2, dim2=-1)).diag_embed()
        noise = torch.randn(batch, *loc.shape, dtype=loc.dtype, device=loc.device)
        v = loc + (tril @ noise.unsqueeze(-1)).squeeze(-1)
        scale = self.log_scale.exp()
        return scale.unsqueeze(-2) * v, kep_svgp.kl_divergence(loc, tril, torch.ones_like(scale)).sum()

    def __call__(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        query_key = self.query_key(x).unflatten(-1, (2, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        w_e, w_r = weights = self.projection(x, None, query_key)
        e, r = ksvd.scores(query_key, weights)
        scale = self.log_scale.exp()
        penalty = self.eta * ksvd.penalty(e, r, w_e, w_r, scale, x.shape[-2]).mean()
        values = kep_svgp.function_values(self.merge(e, r), scale, u)
        return self.out(KEPSVGPAttention.join_heads(values)), penalty


def _block(block: Block) -> Callable:
    norm_attention, dropout, norm_mlp, mlp = block.norm_attention, block.dropout, block.norm_mlp, block.mlp

    def run(x: Tensor, attention: _Softmax | _KEPSVGP, u: Tensor | None) -> tuple[Tensor, Tensor | float]:
        attended, penalty = attention(norm_attention(x), u)
        x = x + dropout(attended)
        return x + mlp(norm_mlp(x)), penalty

    return run
