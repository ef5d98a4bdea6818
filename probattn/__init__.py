"""Uncertainty-aware attention: transformer attention layers as probabilistic programs in Pyro.

Importing it switches on Pyro's ``module_local_params``, so that one trained thing is one ``nn.Module``.
"""

import pyro

pyro.settings.set(module_local_params=True)

from probattn import guides, priors  # noqa: E402
from probattn.attention.base import ProbabilisticAttention  # noqa: E402
from probattn.attention.cgp import CGPAttention  # noqa: E402
from probattn.attention.kep_svgp import KEPSVGPAttention  # noqa: E402
from probattn.attention.kernel import KernelAttention  # noqa: E402
from probattn.attention.sgpa import SGPAttention  # noqa: E402
from probattn.attention.softmax import SoftmaxAttention  # noqa: E402
from probattn.attention.sparse_cgp import SparseCGPAttention  # noqa: E402
from probattn.functional.errors import NumericalError  # noqa: E402
from probattn.functional.jitter import JitterWarning  # noqa: E402
from probattn.handlers import draws, local_posteriors, local_sites  # noqa: E402

__all__ = [
    "CGPAttention",
    "JitterWarning",
    "KEPSVGPAttention",
    "KernelAttention",
    "NumericalError",
    "ProbabilisticAttention",
    "SGPAttention",
    "SoftmaxAttention",
    "SparseCGPAttention",
    "draws",
    "guides",
    "local_posteriors",
    "local_sites",
    "priors",
]
