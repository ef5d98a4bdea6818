"""A conjugate model whose guide is 16 correlated Gaussians, with its exact optimum."""

import math

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn import KEPSVGPAttention, guides
from probattn.models import Supervised

F64, DATA, HEADS, RANK = torch.float64, 60, 4, 4


class CorrelatedBlocks:
    """y = Σ_hd w_hd F_hd + noise for nearly equal weights w of one output; F = (E + R) Λ⁻¹ u; noise
    N(0, 1).

    With v = Λ⁻¹ u and F linear in v the posterior precision is P = I + Jᵀ J. The optimum of the
    family has the exact posterior mean and the inverses of P's diagonal blocks as covariances.
    """

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        layer = KEPSVGPAttention(16, HEADS, rank=RANK, eta=0.0)
        layer.out = nn.Linear(HEADS * RANK, 1, bias=False)
        nn.init.normal_(layer.out.weight, 1.0, 0.3)
        self.model = Supervised(
            layer, lambda f: dist.Normal(f, 1.0).to_event(2), num_data=DATA
        ).double()
        self.x = torch.randn(DATA, 6, 16, dtype=F64) + 2
        with torch.no_grad():
            self.y = self.model(self.x)
            e, r, _, _ = layer.scores(self.x)
        layer.requires_grad_(False)
        self.model.register_parameter("unused", nn.Parameter(torch.zeros(1, dtype=F64)))
        self.guide = guides.for_model(self.model).double()
        weights = layer.out.weight.detach().view(HEADS, RANK)
        features = torch.einsum("hd,nhti->nthdi", weights, e + r).flatten(2).flatten(0, 1)
        self.precision = torch.eye(HEADS * RANK**2, dtype=F64) + features.mT @ features
        self.linear = features.mT @ self.y.flatten()
        diagonal = self.precision.view(HEADS * RANK, RANK, HEADS * RANK, RANK).diagonal(
            dim1=0, dim2=2
        )
        self.blocks = diagonal.movedim(-1, 0)
        self.constant = self.y.square().sum() / 2 + self.y.numel() * math.log(2 * math.pi) / 2
        mean = torch.linalg.solve(self.precision, self.linear)
        self.optimum = self.loss_of(mean, torch.linalg.cholesky(self.blocks.inverse()))

    def batches(self, size: int = DATA) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(size), self.y.split(size), strict=True))

    def loss_of(self, mean: Tensor, tril: Tensor) -> Tensor:
        """−ELBO in nats of the mean of v and the Cholesky factors of its blocks."""
        spread = (tril * (self.blocks @ tril)).sum() / 2 - tril.diagonal(
            dim1=-2, dim2=-1
        ).log().sum()
        return (
            mean @ self.precision @ mean / 2
            - self.linear @ mean
            + spread
            + self.constant
            - len(mean) / 2
        )

    def loss(self) -> Tensor:
        q = self.guide.network.u
        return self.loss_of(q.loc.flatten(), q.scale_tril.flatten(0, 1))

    def gap(self) -> float:
        """Distance of −ELBO from its optimum, in nats per example."""
        return (self.loss() - self.optimum).item() / DATA
