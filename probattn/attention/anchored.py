"""Anchored Gaussian process attention, linear in the number of tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.kernels import RBF
from probattn.attention.options import check_positive
from probattn.attention.regression import RegressionAttention
from probattn.functional import dtypes, sgpa
from probattn.functional.feature_maps import Anchors
from probattn.functional.feature_regression import FeatureRegression


class AnchoredAttention(RegressionAttention):
    """Attention as GP regression of the values on the keys, through M anchors that all examples
    share.

    The output at a query is the posterior mean of a sparse GP (see
    :mod:`probattn.functional.feature_regression`), or a draw from its posterior, at O(N M²) a head
    without an N×N matrix. The anchors are parameters, which the first batch of ``fit`` places (see
    :meth:`place`). Regression of values on keys is that of RFF-GPA
    (:class:`RFFGPAttention`) and of regression at test time (Wang et al., 2025), the features are
    those of Nyström attention (Xiong et al., 2021); ours are anchors that are learned. The mean
    output is a form of attention; its posterior variance is no measure of uncertainty.

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
        symmetric: share the weights of queries and keys.
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
        **options: Any,
    ) -> None:
        check_positive(anchors=anchors)
        super().__init__(dim, heads, **options)
        self.anchors = nn.Parameter(
            (0.5 / self.head_dim) ** 0.5 * torch.randn(heads, anchors, self.head_dim)
        )
        self.remember_placement(is_placed=False)

    @property
    def gain(self) -> float:  # type: ignore[override]
        """That of the RBF kernel."""
        return RBF(self.heads, self.head_dim).gain

    @torch.no_grad()
    def initialise(self, stream: Tensor) -> None:
        """Set the anchors to the keys of vectors ``(..., dim)`` seen at the start of the path."""
        _, key, _ = self.project(self.along_path(stream))
        keys = self.join_heads(key)
        self.anchors.copy_(sgpa.pick_of_heads(keys, self.heads, self.anchors.shape[1]))

    def law(self, x: Tensor, mask: Tensor | None, **latents: Tensor) -> FeatureRegression:
        """Return the law of the output at checked tokens; pure."""
        anchors = Anchors(dtypes.at_least_float32(self.anchors))
        return self.regression(anchors, *self.project(x), mask)
