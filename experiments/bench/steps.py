"""Steps of a layer and of a network."""

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention, draws, guides, local_sites
from probattn.attention.base import LayerFactory
from probattn.experiments.bench.measure import Step
from probattn.inference import ELBOLoss
from probattn.sites import SiteModule


class _LayerModel(SiteModule):
    """Layer and its tokens with an artificial likelihood, so that a step has every term of the
    ELBO."""

    def __init__(self, layer: ProbabilisticAttention, x: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.x = nn.Parameter(x)

    def forward(self, x: Tensor) -> None:
        with local_sites(batch=len(x), num_data=50_000):
            self.factor("y", -self.layer(x).square().mean((-2, -1)))


def layer_step(
    layer: LayerFactory,
    *,
    dim: int,
    heads: int,
    batch: int,
    tokens: int,
    device: str = "cpu",
) -> Step:
    """Return forward and backward of one layer under the ELBO, including the gradient of its
    inputs."""
    with torch.device(device):
        model = _LayerModel(layer(dim, heads), torch.randn(batch, tokens, dim))
        module = ELBOLoss(model, guides.for_model(model))
    return step(module, model.x, learns=False)


def step(module: ELBOLoss, *batch: Tensor, learns: bool = True) -> Step:
    """Return a step of SVI on a batch: −ELBO with one posterior sample per example, its gradients,
    and fused Adam.

    Args:
        module: −ELBO of a model and its guide.
        batch: arguments of the model.
        learns: change the parameters; otherwise a step is forward and backward only.
    """
    optimizer = torch.optim.Adam(
        module.parameters(),
        lr=1e-3,
        fused=True,
    )

    def run() -> None:
        with draws("example"):
            loss = module(*batch)
        module.pairs = []  # they would hold this step's tensors until the next
        loss.backward()
        if learns:
            optimizer.step()
        optimizer.zero_grad()

    return run
