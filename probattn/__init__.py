"""Uncertainty-aware attention: transformer attention layers as probabilistic programs in Pyro.

Importing it switches on Pyro's ``module_local_params``, so that one trained thing is one ``nn.Module``.
"""

import pyro

pyro.settings.set(module_local_params=True)

from probattn import guides, priors  # noqa: E402
from probattn.attention.base import ProbabilisticAttention  # noqa: E402
from probattn.attention.kep_svgp import KEPSVGPAttention  # noqa: E402
from probattn.attention.softmax import SoftmaxAttention  # noqa: E402
from probattn.handlers import draws, local_sites  # noqa: E402

__all__ = ["KEPSVGPAttention", "ProbabilisticAttention", "SoftmaxAttention", "draws", "guides", "local_sites", "priors"]
