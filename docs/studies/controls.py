"""Controls of anchored attention: the same kernel without anchors.

``probattn study digits/softmax --layers docs.studies.controls:L2Softmax,…`` runs them from the
repository's root.
"""

import torch
from torch import Tensor

from probattn import KernelAttention
from probattn.functional import padding


class L2Softmax(KernelAttention):
    """Softmax of −‖q − k‖² / 2ℓ²: kernel attention with normalised weights."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend over the real tokens; arguments, result and errors as in the base class."""
        query, key, value = self.project(self.checked(x, mask))
        with self.precise():
            weights = padding.columns(self.kernel(query, key), mask)
            attended = weights @ value / weights.sum(-1, keepdim=True)
        return self.from_heads(attended)


class ExactGP(KernelAttention):
    """GP regression of the values on all keys, K_qk (K_kk + I)⁻¹ V: O(N³) a head."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend over the real tokens; arguments, result and errors as in the base class."""
        query, key, value = self.project(self.checked(x, mask))
        with self.precise():
            gram = padding.columns(self.kernel(key, key), mask)
            identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
            weights = torch.linalg.solve(gram + identity, value)
            attended = padding.columns(self.kernel(query, key), mask) @ weights
        return self.from_heads(attended)
