"""Steps of a layer and of a network."""

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention, draws, guides, local_sites
from probattn.attention.base import LayerFactory
from probattn.experiments.bench.measure import Step
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.runs.build import build, loaders
from probattn.inference import ELBOLoss


class _LayerModel(nn.Module):
    """Layer and its tokens with an artificial likelihood, so that a step has every term of the ELBO."""

    def __init__(self, layer: ProbabilisticAttention, x: Tensor) -> None:
        super().__init__()
        self.layer, self.x = layer, nn.Parameter(x)

    def forward(self, x: Tensor) -> None:
        with local_sites(batch=len(x), num_data=50_000):
            unit = dist.Unit(-self.layer(x).square().mean((-2, -1)))
            pyro.sample("y", unit, obs=unit.sample(), infer={"is_auxiliary": True, "local": True})


def layer_step(layer: LayerFactory, *, dim: int, heads: int, batch: int, tokens: int, device: str = "cpu") -> Step:
    """Return forward and backward of one layer under the ELBO, including the gradient of its inputs."""
    with torch.device(device):
        model = _LayerModel(layer(dim, heads), torch.randn(batch, tokens, dim))
        module = ELBOLoss(model, guides.for_model(model))
    return _step(lambda: negative_elbo(module, model.x), module, learns=False)


def training_step(settings: Settings, dataset: ImageDataset, *, device: str) -> Step:
    """Return a training step of a run by SVI, with fused Adam."""
    module, batch = ELBOLoss(*build(settings, dataset)).to(device).train(), batch_of(settings, dataset, device=device)
    return _step(lambda: negative_elbo(module, *batch) / len(dataset.train), module)


def batch_of(settings: Settings, dataset: ImageDataset, *, device: str) -> tuple[Tensor, Tensor]:
    """Return the first batch of training images and labels."""
    train, _ = loaders(settings, dataset, device=device)
    return next(iter(train))


def negative_elbo(module: ELBOLoss, *batch: Tensor) -> Tensor:
    """Return −ELBO of a batch, with one posterior sample per example."""
    with draws("example"):
        value = module(*batch)
    module.pairs = []  # they would hold this step's tensors until the next
    return value


def _step(loss: Callable[[], Tensor], module: nn.Module, *, learns: bool = True) -> Step:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        loss().backward()
        if learns:
            optimizer.step()
        optimizer.zero_grad()

    return step
