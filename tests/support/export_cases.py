"""Layers and networks for tests of export."""

from probattn import (
    AnchoredAttention,
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)

KEP = KEPSVGPAttention.partial(rank=2, multiple=2)


LAYERS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEP,
    "kep-svgp-concat": KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4),
    "kep-svgp-svd": KEPSVGPAttention.partial(rank=2, projection="svd"),
    "kep-svgp-around-softmax": KEPSVGPAttention.partial(rank=2, multiple=2, mean="softmax", amplitude=1.0),
    "kep-svgp-residual": KEPSVGPAttention.partial(rank=2, multiple=2, residual=1.0),
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-joint": SGPAttention.partial(inducing=3, draws="joint"),
    "sgpa-standard": SGPAttention.partial(inducing=None),
    "cgp": CGPAttention.partial(noise=0.3),
    "sparse-cgp": SparseCGPAttention.partial(inducing=2, noise=0.3),
    "anchored": AnchoredAttention.partial(anchors=3),
    "anchored-draw": AnchoredAttention.partial(anchors=3, output="draw"),
}
