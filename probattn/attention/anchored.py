"""Anchored Gaussian process attention, linear in the number of tokens (ours)."""

from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.attention.base import Laws, ProbabilisticAttention
from probattn.attention.kernels import RBF
from probattn.attention.options import check_choice, check_positive
from probattn.distributions import ColumnNormal
from probattn.functional import dtypes, padding, sgpa
from probattn.functional.anchored import Anchored
from probattn.functional.gaussian import Dense


class AnchoredAttention(ProbabilisticAttention):
    """Attention as GP regression of the values on the keys, through M anchors that all examples
    share.

    The output at a query is the posterior mean of a sparse GP (see
    :mod:`probattn.functional.anchored`), or a draw from its posterior, at O(N M²) a head without an
    N×N matrix. The anchors are parameters; take their initial values from data by
    ``network.initialise_inducing(batch)``. It is ours, not from a paper. Related are regression of
    values at test time (Wang et al., 2025), Nyström attention (Xiong et al., 2021) and sparse CGP
    without z_o.

    Sites with ``output="draw"``: ``w``, latent, local, event ``(head, anchor, output)``, prior N(0,
    I), posterior exact given the values; ``residual``, latent, local, event
    ``(head, token, output)``, N(0, 1) in both.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        anchors: M, the number of anchors of each head.
        noise: σ, standard deviation of the values around f.
        learn_noise: learn σ of each head.
        output: ``"mean"``, which is deterministic, or ``"draw"``.
        alpha: weight of the values' log marginal likelihood in the log joint.
        bias: give query, key and value a bias.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        anchors: int = 16,
        noise: float = 1.0,
        learn_noise: bool = False,
        output: Literal["mean", "draw"] = "mean",
        alpha: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        check_choice("output", output, ("mean", "draw"))
        check_positive(anchors=anchors, noise=noise)
        self.output = output
        self.alpha = alpha
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.gain = RBF(heads, self.head_dim).gain
        self.scale_rows(self.query_key_value, 2 * dim)
        self.anchors = nn.Parameter(
            (0.5 / self.head_dim) ** 0.5 * torch.randn(heads, anchors, self.head_dim)
        )
        self.log_noise = self.log_of(noise, heads, learned=learn_noise)
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Return the base signature and the kind of output."""
        return super().signature() | {"output": self.output}

    def is_stochastic(self) -> bool:
        """Return False for the mean output."""
        return self.output == "draw"

    @torch.no_grad()
    def initialise(self, stream: Tensor) -> None:
        """Set the anchors to the keys of vectors ``(..., dim)`` seen at the start of the path."""
        key = self.query_key_value(self.along_path(stream)).chunk(3, -1)[1]
        self.anchors.copy_(sgpa.pick_of_heads(key, self.heads, self.anchors.shape[1]))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments, result and errors as in the base class."""
        x = self.checked(x, mask)
        with self.precise():
            law = self.law(x, mask)
            if self.alpha:
                self.factor("evidence", self.alpha * law.evidence.sum(-1))
            output = law.mean if self.output == "mean" else self._draw(law)
        return self.from_heads(output)

    def law(self, x: Tensor, mask: Tensor | None) -> Anchored:
        """Return the law of the output at checked tokens; pure."""
        projected = dtypes.at_least_float32(self.query_key_value(x))
        query, key, value = self.split_heads(projected, 3)
        real, count = padding.real_and_count(mask, query)
        return Anchored(
            query,
            key,
            padding.rows(value, real),
            anchors=dtypes.at_least_float32(self.anchors),
            noise=(2 * dtypes.at_least_float32(self.log_noise)).exp(),
            real=real,
            count=count,
        )

    def _draw(self, law: Anchored) -> Tensor:
        """Sample w from its posterior, and the output given w."""
        w = self.sample_local("w", *self.weight_laws(law))
        unit = dist.Normal(torch.zeros_like(law.value), 1.0).to_event(3)
        noise = self.sample_local("residual", unit, unit)
        return law.query_features @ w + law.residual.sqrt().unsqueeze(-1) * noise

    def weight_laws(self, law: Anchored) -> Laws:
        """Return prior and posterior of w."""
        anchors = law.loc.shape[-2]
        identity = torch.eye(anchors, dtype=law.loc.dtype, device=law.loc.device)
        unit = Dense(identity.expand(self.heads, -1, -1), anchors)
        prior = ColumnNormal(torch.zeros_like(law.loc), unit)
        return prior, ColumnNormal(law.loc, law.covariance)
