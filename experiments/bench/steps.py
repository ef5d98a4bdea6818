"""Steps of a layer and of a network, by SVI and by a loop without Pyro."""

import copy
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn import KEPSVGPAttention, ProbabilisticAttention, draws, guides, local_sites
from probattn.attention.base import LayerFactory
from probattn.experiments.bench.measure import Step
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.runs.build import build, loaders
from probattn.functional import kep_svgp
from probattn.inference import ELBOLoss
from probattn.models import Classifier


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


def training_steps(settings: Settings, dataset: ImageDataset, *, device: str) -> dict[str, Step]:
    """Return a training step of a run by SVI, and that of a copy by :func:`reference_loss`, both with fused Adam."""
    module = ELBOLoss(*build(settings, dataset)).to(device).train()
    twin = copy.deepcopy(module)
    (x, y), loss = batch_of(settings, dataset, device=device), reference_loss(twin.model, twin.guide)
    return {
        "SVI": _step(lambda: negative_elbo(module, x, y) / len(dataset.train), module),
        "loop without Pyro": _step(lambda: loss(x, y), twin),
    }


def batch_of(settings: Settings, dataset: ImageDataset, *, device: str) -> tuple[Tensor, Tensor]:
    """Return the first batch of training images and labels."""
    return next(iter(loaders(settings, dataset, device=device).train))


def negative_elbo(module: ELBOLoss, *batch: Tensor) -> Tensor:
    """Return −ELBO of a batch, with one posterior sample per example."""
    with draws("example"):
        value = module(*batch)
    module.pairs = []  # they would hold this step's tensors until the next
    return value


def reference_loss(model: Classifier, guide: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return −ELBO/N as a function of a batch, without Pyro: values and gradients equal those of SVI from one seed.

    Args:
        model: ViT whose attention layers are softmax or KEP-SVGP attention, the latter with the default prior.
        guide: its guide, of the family ``full``.
    """
    network, layers = model.network, [block.attention for block in model.network.blocks]
    is_gp = [isinstance(layer, KEPSVGPAttention) for layer in layers]
    posteriors = {n: guide.get_submodule(f"network.blocks.{n}.attention.u") for n, gp in enumerate(is_gp) if gp}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        total, u = 0.0, {}
        for n, q in posteriors.items():  # before the network's dropout, like a guide
            scale, tril = layers[n].log_scale.exp(), q.scale_tril
            noise = torch.randn(len(x), *q.loc.shape, dtype=x.dtype, device=x.device)
            u[n] = scale.unsqueeze(-2) * (q.loc + (tril @ noise.unsqueeze(-1)).squeeze(-1))
            total = total + kep_svgp.kl_divergence(q.loc, tril, torch.ones_like(scale)).sum() / model.num_data
        x = network.tokens(x)
        for n, block in enumerate(network.blocks):
            if n not in u:
                x = block(x)
                continue
            scale = layers[n].log_scale.exp()
            attended, log_factors = layers[n].compute(block.norm_attention(x), None, scale=scale, u=u[n])
            x = x + block.dropout(attended)
            x = x + block.mlp(block.norm_mlp(x))
            total = total - log_factors["ksvd"].mean()
        return F.cross_entropy(network.head(network.norm(x.mean(-2))), y) + total

    return loss


def _step(loss: Callable[[], Tensor], module: nn.Module, *, learns: bool = True) -> Step:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        loss().backward()
        if learns:
            optimizer.step()
        optimizer.zero_grad()

    return step
