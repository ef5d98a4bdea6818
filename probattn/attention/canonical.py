"""Guides of z_o, the canonical process at the tokens of an example.

A guide is built as ``guide(dim, heads)`` and called as ``guide(law, x)``, with the joint law at the
tokens and the tokens ``(..., N, dim)``; it returns q(z_o).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from probattn.functional import dtypes, padding
from probattn.functional.correlated import Canonical, Correlated


class Prior(nn.Module):
    """q(z_o) = p(z_o), for which R is the paper's bound (27)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()

    def forward(self, law: Correlated, x: Tensor) -> Canonical:
        """Return q(z_o)."""
        return Canonical(None, law.prior)

    def regulariser(self, law: Correlated, x: Tensor) -> Tensor:
        """Return R in closed form, ``(..., H)``."""
        return law.regulariser(self(law, x))


class Learned(Prior):
    """Amortised q(z_o): a mean and a scale for each token, linear in it; initialised at the prior.

    Args:
        dim: width of the tokens.
        heads: number of heads H.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.dim = dim
        self.heads = heads
        self.linear = nn.Linear(dim, dim + heads)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, law: Correlated, x: Tensor) -> Canonical:
        """Return q(z_o)."""
        raw = dtypes.at_least_float32(dtypes.apply_linear(self.linear, x))
        loc, raw_scale = raw.split([self.dim, self.heads], dim=-1)
        loc = loc.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        scale = 1e-3 + F.softplus(raw_scale + 0.5397424).mT  # 1 initially
        if law.real is not None:
            scale = scale.where(law.real, 1.0)
        return law.learned(padding.rows(loc, law.real), scale)


class Posterior(Prior):
    """q(z_o) = p(z_o | z_k), through which z_q has the law of the closed form.

    Its R in closed form is that of p(z_o | z_q = ν, z_k), the log marginal itself.
    """

    def forward(self, law: Correlated, x: Tensor) -> Canonical:
        """Return q(z_o)."""
        return law.posterior()

    def regulariser(self, law: Correlated, x: Tensor) -> Tensor:
        """Return log p(z_q = ν, z_k), ``(..., H)``."""
        return law.log_marginal()


GUIDES = {"posterior": Posterior, "prior": Prior, "learned": Learned}
