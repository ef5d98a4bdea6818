"""Every form of every attention layer, small, for networks of 8 dimensions, 2 heads and 4
tokens."""

from functools import partial

from torch import nn

from probattn import (
    AnchoredAttention,
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    RFFCGPAttention,
    RFFGPAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)
from probattn.attention.kep_svgp_authors import AuthorsKEPSVGPAttention
from probattn.models import layer_factories

KEP, SGPA = partial(KEPSVGPAttention.partial, rank=2), SGPAttention.partial
RFF, RFFCGP = RFFGPAttention.partial, partial(RFFCGPAttention.partial, features=6)
CGP, SPARSE = CGPAttention.partial, partial(SparseCGPAttention.partial, inducing=3)

# Each layer by its name, of which some have smaller sizes below.
ANY_LENGTH = {name: record.factory() for name, record in layer_factories.LAYERS.items()} | {
    "softmax": SoftmaxAttention.partial(),
    "softmax-dropout": SoftmaxAttention.partial(dropout=0.1),
    "kernel": KernelAttention.partial(),
    "kernel-ard-symmetric": KernelAttention.partial(kernel="ard", symmetric=True),
    "kernel-exponential": KernelAttention.partial(kernel="exponential"),
    "kep-svgp": KEP(),
    "kep-svgp-plain": KEP(projection="plain"),
    "kep-svgp-svd": KEP(projection="svd"),
    "kep-svgp-residual": KEP(residual=1.0),
    "kep-svgp-svd-residual": KEP(projection="svd", residual=1.0),
    "kep-svgp-mean": KEP(mean="softmax", dropout=0.1),
    "kep-svgp-laplace": KEP(prior="laplace"),
    "kep-svgp-student-t": KEP(prior="student_t"),
    "kep-svgp-authors": AuthorsKEPSVGPAttention.partial(rank=2),
    "sgpa": SGPA(inducing=3),
    "sgpa-joint": SGPA(inducing=3, draws="joint"),
    "sgpa-standard": SGPA(inducing=None),
    "sgpa-standard-joint": SGPA(inducing=None, draws="joint"),
    "cgp": CGP(),
    "cgp-collapsed": CGP(collapsed=True),
    "cgp-paper": CGP(
        canonical_guide="prior", output="mean", regulariser_norm="column", noisy_output=False
    ),
    "cgp-prior": CGP(canonical_guide="prior"),
    "cgp-collapsed-mean": CGP(collapsed=True, output="mean"),
    "cgp-learned": CGP(canonical_guide="learned"),
    "sparse-cgp": SPARSE(),
    "sparse-cgp-collapsed": SPARSE(collapsed=True),
    "sparse-cgp-prior": SPARSE(canonical_guide="prior"),
    "sparse-cgp-collapsed-mean": SPARSE(collapsed=True, output="mean"),
    "sparse-cgp-learned": SPARSE(canonical_guide="learned"),
    "anchored": AnchoredAttention.partial(anchors=3),
    "anchored-draw": AnchoredAttention.partial(anchors=3, output="draw", learn_noise=True),
    "anchored-evidence": AnchoredAttention.partial(anchors=3, alpha=0.1, learn_noise=True),
    "anchored-dual": AnchoredAttention.partial(anchors=6, output="draw", alpha=0.1),
    "rff-gpa": RFF(features=2),
    "rff-gpa-draw": RFF(features=2, output="draw", alpha=0.1),
    "rff-gpa-dual": RFF(features=6, output="draw", alpha=0.1, symmetric=False),
    "rff-gpa-sampled": RFF(features=2, frequencies="sampled"),
    "rff-gpa-sampled-draw": RFF(features=6, frequencies="sampled", output="draw"),
    "rff-cgp": RFFCGP(),
    "rff-cgp-collapsed": RFFCGP(collapsed=True),
    "rff-cgp-keys": RFFCGP(regulariser="keys"),
    "rff-cgp-collapsed-keys": RFFCGP(regulariser="keys", collapsed=True),
    "rff-cgp-collapsed-mean": RFFCGP(collapsed=True, output="mean"),
    "rff-cgp-learned": RFFCGP(canonical_guide="learned"),
    "rff-cgp-sampled": RFFCGP(frequencies="sampled"),
}
"""Factories by name."""

FOUR_TOKENS = {
    "kep-svgp-concat": KEP(merge="concat", tokens=4),
    "kep-svgp-concat-lowrank": KEP(merge="concat_lowrank", tokens=4),
    "sparse-cgp-tokens": SPARSE(tokens=4),
}
"""Factories of forms for a fixed number of tokens."""

LAYERS = ANY_LENGTH | FOUR_TOKENS


class Network(nn.Module):
    """A layer with a linear head on the mean token."""

    def __init__(self, layer):
        super().__init__()
        self.attention, self.head = layer(8, 2), nn.Linear(8, 3)

    def forward(self, x, mask=None):
        return self.head(self.attention(x, mask).mean(-2))
