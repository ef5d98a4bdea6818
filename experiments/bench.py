"""Cost, measured as ratios within one run: the cases take turns, medians are compared."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn import KEPSVGPAttention, SoftmaxAttention, draws, guides, local_sites
from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.experiments.runs import environment
from probattn.inference import TraceMeanField_ELBO, predict
from probattn.models import Classifier, ViT, last

Step = Callable[[], Any]


class _LayerModel(PyroModule):
    """A layer and a made-up likelihood, so that forward and backward have every term of the ELBO."""

    def __init__(self, layer: ProbabilisticAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> None:
        with local_sites(batch=x.shape[0], num_data=50_000):
            log_likelihood = -self.layer(x).square().mean((-2, -1))
            unit = dist.Unit(log_likelihood)
            pyro.sample("y", unit, obs=unit.sample(), infer={"is_auxiliary": True, "local": True})


def layers(*, repeats: int) -> dict[str, Any]:
    """Forward and backward, ELBO terms included, beside softmax attention of the same width."""
    dim, heads = 384, 12
    concat = KEPSVGPAttention.partial(rank=10, merge="concat", tokens=64)
    add = KEPSVGPAttention.partial(rank=10, merge="add")
    small = _time(
        {
            "softmax, batch 128, N 64": layer_step(SoftmaxAttention, dim, heads, batch=128, tokens=64),
            "KEP-SVGP concat, batch 128, N 64": layer_step(concat, dim, heads, batch=128, tokens=64),
            "KEP-SVGP add, batch 128, N 64": layer_step(add, dim, heads, batch=128, tokens=64),
        },
        repeats,
    )
    long = _time(
        {
            "softmax, batch 1, N 4096": layer_step(SoftmaxAttention, dim, heads, batch=1, tokens=4096),
            "KEP-SVGP add, batch 1, N 4096": layer_step(add, dim, heads, batch=1, tokens=4096),
        },
        repeats,
    )
    growth = _time(
        {
            "KEP-SVGP add, batch 1, N 4096 (alone)": layer_step(add, dim, heads, batch=1, tokens=4096),
            "KEP-SVGP add, batch 1, N 16384": layer_step(add, dim, heads, batch=1, tokens=16384),
        },
        repeats,
    )
    rows = _rows(small) + _rows(long) + _rows(growth)
    return {
        "title": f"forward + backward of one layer, dim {dim}, {heads} heads, float32",
        "repeats": repeats,
        "rows": rows,
        "environment": environment("cpu"),
    }


def prediction(*, repeats: int) -> dict[str, Any]:
    """Ten-draw prediction and training step of the 7-layer CIFAR-10 ViT, batch 128."""
    x, y = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
    softmax = Classifier(_vit(SoftmaxAttention), num_data=45_000)
    kep = Classifier(_vit(KEPSVGPAttention.partial(rank=10, merge="concat", tokens=64, eta=10.0)), num_data=45_000)
    guide = guides.for_model(kep)
    predicting = _time(
        {
            "deterministic forward, softmax ViT": forward_step(softmax.network, x),
            "ten-draw prediction, KEP-SVGP in the last layer": lambda: predict(kep, guide, x, num_draws=10),
        },
        repeats,
    )
    training = _time(
        {
            "training step, softmax ViT, plain torch": plain_training_step(softmax.network, x, y),
            "training step, KEP-SVGP in the last layer, SVI": svi_training_step(kep, guide, x, y),
        },
        repeats,
    )
    return {
        "title": "7-layer ViT, dim 384, 12 heads, batch 128, float32",
        "repeats": repeats,
        "rows": _rows(predicting) + _rows(training),
        "environment": environment("cpu"),
    }


def layer_step(factory: LayerFactory, dim: int, heads: int, *, batch: int, tokens: int) -> Step:
    """Forward and backward of one layer under the ELBO, inputs' gradient included."""
    layer = factory(dim, heads)
    model = _LayerModel(layer)
    guide = guides.for_model(model)
    elbo = TraceMeanField_ELBO()(model, guide)
    x = torch.randn(batch, tokens, dim, requires_grad=True)

    def step() -> None:
        elbo.zero_grad()
        x.grad = None
        with draws("example"):
            elbo(x).backward()

    return step


def forward_step(network: nn.Module, x: Tensor) -> Step:
    """A deterministic forward in evaluation mode."""

    def step() -> None:
        network.eval()
        with torch.no_grad():
            network(x)

    return step


def plain_training_step(network: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Cross-entropy and Adam by hand, without Pyro."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step() -> None:
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()

    return step


def svi_training_step(model: Classifier, guide: nn.Module, x: Tensor, y: Tensor) -> Step:
    """One step of SVI as ``fit`` does it."""
    elbo = TraceMeanField_ELBO()(model, guide)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=1e-3)

    def step() -> None:
        elbo.train()
        optimizer.zero_grad()
        with draws("example"):
            (elbo(x, y) / model.num_data).backward()
        optimizer.step()

    return step


def _vit(attention: LayerFactory) -> ViT:
    return ViT(
        image_size=32,
        patch_size=4,
        classes=10,
        dim=384,
        depth=7,
        heads=12,
        mlp_dim=384,
        dropout=0.1,
        attention=last(1, attention, of=7),
    )


def _time(cases: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median milliseconds of each case; the cases take turns, after two rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(repeats + 2):
        for name, step in cases.items():
            started = time.perf_counter()
            step()
            if number >= 2:
                seconds[name].append(time.perf_counter() - started)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def _rows(medians: dict[str, float]) -> list[dict[str, Any]]:
    """A row a case, relative to the first."""
    baseline = next(iter(medians))
    return [
        {"case": case, "ms": ms, "baseline": baseline, "ratio": ms / medians[baseline]} for case, ms in medians.items()
    ]
