"""Uncertainty-aware attention: transformer attention layers as probabilistic programs in Pyro."""

# ruff: noqa: E402 - the imports below take seconds
import signal
import sys
from pathlib import PurePath
from pkgutil import extend_path

# Until its `main` runs, Ctrl-C ends the command `probattn` as it ends a program of C, without a
# traceback.
is_command = PurePath((sys.argv or [""])[0]).stem in ("probattn", "-m")
if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from probattn import guides, priors
from probattn.attention.anchored import AnchoredAttention
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.cgp import CGPAttention
from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.attention.kernel import KernelAttention
from probattn.attention.rff_cgp import RFFCGPAttention
from probattn.attention.rff_gpa import RFFGPAttention
from probattn.attention.sgpa import SGPAttention
from probattn.attention.softmax import SoftmaxAttention
from probattn.attention.sparse_cgp import SparseCGPAttention
from probattn.draws import draws
from probattn.functional.errors import NumericalError
from probattn.functional.jitter import JitterWarning
from probattn.local_sites import local_posteriors, local_sites
from probattn.site_info import local_site
from probattn.sites import name_layers

__version__ = "0.1.0"
__path__ = extend_path(
    __path__, __name__
)  # in the root of a clone this folder comes before the installed package

__all__ = [
    "AnchoredAttention",
    "CGPAttention",
    "JitterWarning",
    "KEPSVGPAttention",
    "KernelAttention",
    "NumericalError",
    "ProbabilisticAttention",
    "RFFCGPAttention",
    "RFFGPAttention",
    "SGPAttention",
    "SoftmaxAttention",
    "SparseCGPAttention",
    "draws",
    "guides",
    "local_posteriors",
    "local_site",
    "local_sites",
    "name_layers",
    "priors",
]
