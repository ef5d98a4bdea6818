# The public names. The package imports each when it is first used: see `__init__.py`.

from . import guides as guides
from . import priors as priors
from .attention.anchored import AnchoredAttention as AnchoredAttention
from .attention.base import ProbabilisticAttention as ProbabilisticAttention
from .attention.cgp import CGPAttention as CGPAttention
from .attention.kep_svgp import KEPSVGPAttention as KEPSVGPAttention
from .attention.kernel import KernelAttention as KernelAttention
from .attention.rff_cgp import RFFCGPAttention as RFFCGPAttention
from .attention.rff_gpa import RFFGPAttention as RFFGPAttention
from .attention.sgpa import SGPAttention as SGPAttention
from .attention.softmax import SoftmaxAttention as SoftmaxAttention
from .attention.sparse_cgp import SparseCGPAttention as SparseCGPAttention
from .draws import draws as draws
from .functional.errors import NumericalError as NumericalError
from .functional.jitter import JitterWarning as JitterWarning
from .local_sites import local_posteriors as local_posteriors
from .local_sites import local_sites as local_sites
from .site_info import local_site as local_site
from .sites import name_layers as name_layers

__version__: str
