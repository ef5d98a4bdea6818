"""Steps that are timed: forward passes, forward and backward of a layer, training steps."""

from collections.abc import Callable, Iterable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn import draws, guides, local_sites
from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.experiments.bench.timing import Step
from probattn.inference import ELBOLoss
from probattn.models import Classifier


class _LayerModel(nn.Module):
    """Layer with an artificial likelihood, so that forward and backward have every term of the ELBO."""

    def __init__(self, layer: ProbabilisticAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> None:
        with local_sites(batch=x.shape[0], num_data=50_000):
            log_likelihood = -self.layer(x).square().mean((-2, -1))
            unit = dist.Unit(log_likelihood)
            pyro.sample("y", unit, obs=unit.sample(), infer={"is_auxiliary": True, "local": True})


def layer_step(factory: LayerFactory, dim: int, heads: int, *, batch: int, tokens: int, device: str = "cpu") -> Step:
    """Return forward and backward of one layer under the ELBO, including the gradient of its inputs."""
    with torch.device(device):
        x = torch.randn(batch, tokens, dim, requires_grad=True)
        loss, parameters = negative_elbo(_LayerModel(factory(dim, heads)), x)

    def step() -> None:
        loss().backward()
        for tensor in (*parameters, x):
            tensor.grad = None

    return step


def forward_step(network: nn.Module, x: Tensor) -> Step:
    """Return a deterministic forward pass in evaluation mode."""

    def step() -> None:
        network.eval()
        with torch.no_grad():
            network(x)

    return step


def training_step(loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter]) -> Step:
    """Return a step of loss, backward and fused Adam."""
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def svi_step(model: Classifier, guide: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a step of SVI on −ELBO/N."""
    loss, parameters = negative_elbo(model, x, y, guide=guide)
    return training_step(lambda: loss() / model.num_data, parameters)


def negative_elbo(
    model: nn.Module, *batch: Tensor, guide: nn.Module | None = None
) -> tuple[Callable[[], Tensor], list[nn.Parameter]]:
    """Return −ELBO of a batch, with one posterior sample per example, and the parameters that it depends on.

    Args:
        model: set to training mode.
        batch: its arguments.
        guide: guide of the model; by default a new one.
    """
    module = ELBOLoss(model, guide or guides.for_model(model)).train()

    def loss() -> Tensor:
        with draws("example"):
            value = module(*batch)
        module.traces = ()  # they would hold this step's tensors until the next
        return value

    return loss, list(module.parameters())
