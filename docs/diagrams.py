"""Diagrams of the layers' programs by ``pyro.render_model``: ``python docs/diagrams.py`` writes
``docs/figures/*.svg``.

Needs the ``graphviz`` package and its ``dot`` binary; the sources alone need no binary.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    ProbabilisticAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    name_layers,
)

if TYPE_CHECKING:
    import graphviz

FIGURES = Path(__file__).parent / "figures"
EXAMPLES, TOKENS, DIM, HEADS = 5, 3, 4, 2


class Regression(PyroModule):
    """y ~ N(mean output of one layer, 0.5²), the smallest model of a layer.

    Args:
        attention: the layer.
    """

    def __init__(self, attention: ProbabilisticAttention) -> None:
        super().__init__()
        self.attention = attention
        name_layers(self)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Draw the labels ``(batch,)`` of ``x (batch, tokens, dim)``, or observe them."""
        with pyro.plate("examples", len(x)):
            return pyro.sample("y", dist.Normal(self.attention(x).mean((-2, -1)), 0.5), obs=y)


def random_scale() -> ProbabilisticAttention:
    """Return KEP-SVGP with a prior on Λ."""
    layer = KEPSVGPAttention(DIM, HEADS, rank=2)
    to_pyro_module_(layer, recurse=False)
    layer.log_scale = PyroSample(dist.Normal(0.0, 0.5).expand([HEADS, 2]).to_event(2))
    return layer


LAYERS: dict[str, Callable[[], ProbabilisticAttention]] = {
    "softmax": lambda: SoftmaxAttention(DIM, HEADS),
    "kernel": lambda: KernelAttention(DIM, HEADS),
    "kep-svgp": lambda: KEPSVGPAttention(DIM, HEADS, rank=2),
    "kep-svgp-ard": lambda: KEPSVGPAttention(DIM, HEADS, rank=2, prior="ard"),
    "kep-svgp-random-scale": random_scale,
    "sgpa": lambda: SGPAttention(DIM, HEADS, inducing=3),
    "sgpa-standard": lambda: SGPAttention(DIM, HEADS, inducing=None),
    "cgp": lambda: CGPAttention(DIM, HEADS),
    "cgp-collapsed": lambda: CGPAttention(DIM, HEADS, collapsed=True),
    "sparse-cgp": lambda: SparseCGPAttention(DIM, HEADS, inducing=2),
    "sparse-cgp-collapsed": lambda: SparseCGPAttention(DIM, HEADS, inducing=2, collapsed=True),
}
"""The layers of the page, by the name of their figure."""


DARK = b"""<style>@media (prefers-color-scheme: dark) {
[fill="white"] {fill: #0d1117} [fill="gray"] {fill: #57606a} [fill="black"] {fill: #f0f3f6}
[stroke="black"] {stroke: #f0f3f6} text {fill: #f0f3f6}
}</style>
"""


def diagram(name: str) -> "graphviz.Digraph":
    """Return the diagram of a model with the layer of that name; latent sites are white, observed
    ones grey."""
    torch.manual_seed(0)
    model = Regression(LAYERS[name]())
    return pyro.render_model(
        model, model_args=(torch.randn(EXAMPLES, TOKENS, DIM), torch.zeros(EXAMPLES))
    )


def follow_color_scheme(svg: bytes) -> bytes:
    """Return a diagram that is light on dark on a dark screen."""
    return svg.replace(b"<g id=", DARK + b"<g id=", 1)


if __name__ == "__main__":
    for name in LAYERS:
        (FIGURES / f"{name}.svg").write_bytes(follow_color_scheme(diagram(name).pipe(format="svg")))
