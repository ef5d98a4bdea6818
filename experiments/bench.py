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

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    draws,
    guides,
    local_sites,
)
from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.experiments.folder import environment
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


def layers(
    *,
    repeats: int,
    dim: int = 384,
    heads: int = 12,
    rank: int = 10,
    batch: int = 128,
    tokens: int = 64,
    long: int = 4096,
    longer: int = 16384,
) -> dict[str, Any]:
    """Forward and backward, ELBO terms included, beside softmax attention of the same width.

    Args:
        repeats: timed rounds.
        dim, heads, rank: of every layer.
        batch, tokens: of the short sequences.
        long, longer: numbers of tokens, at batch 1, between which the growth of time is measured.
    """
    concat = KEPSVGPAttention.partial(rank=rank, merge="concat", tokens=tokens)
    add = KEPSVGPAttention.partial(rank=rank, merge="add")

    def case(factory: LayerFactory, batch: int, tokens: int) -> Step:
        return layer_step(factory, dim, heads, batch=batch, tokens=tokens)

    short = {
        f"softmax, batch {batch}, N {tokens}": case(SoftmaxAttention, batch, tokens),
        f"KEP-SVGP concat, batch {batch}, N {tokens}": case(concat, batch, tokens),
        f"KEP-SVGP add, batch {batch}, N {tokens}": case(add, batch, tokens),
    }
    one = {
        f"softmax, batch 1, N {long}": case(SoftmaxAttention, 1, long),
        f"KEP-SVGP add, batch 1, N {long}": case(add, 1, long),
    }
    growth = {
        f"KEP-SVGP add, batch 1, N {long} (alone)": case(add, 1, long),
        f"KEP-SVGP add, batch 1, N {longer}": case(add, 1, longer),
    }
    return {
        "title": f"forward + backward of one layer, dim {dim}, {heads} heads, float32",
        "repeats": repeats,
        "rows": [row for cases in (short, one, growth) for row in _rows(_time(cases, repeats))],
        "environment": environment("cpu"),
    }


def gaussian_process_layers(
    *,
    repeats: int,
    dim: int = 128,
    heads: int = 4,
    inducing: int = 16,
    batch: int = 25,
    tokens: int = 64,
    long: int = 2048,
    longer: int = 8192,
) -> dict[str, Any]:
    """Forward and backward of the Gaussian-process layers, ELBO terms included, beside softmax attention.

    ``kept`` holds the MiB that autograd keeps between the two, for the cases whose growth is measured.

    Args:
        repeats: timed rounds.
        dim, heads, inducing: of every layer.
        batch, tokens: of the sequences.
        long, longer: numbers of tokens, at batch 1, between which the growth of time and memory is measured.
    """
    sparse = SparseCGPAttention.partial(inducing=inducing)
    factories = {
        "softmax": SoftmaxAttention,
        "kernel": KernelAttention,
        f"SGPA, {inducing} inducing, marginal draws": SGPAttention.partial(inducing=inducing),
        f"SGPA, {inducing} inducing, joint draws": SGPAttention.partial(inducing=inducing, draws="joint"),
        f"sparse CGP, {inducing} inducing, draw, exact R": sparse,
        f"sparse CGP, {inducing} inducing, draw, R by draws": SparseCGPAttention.partial(
            inducing=inducing, guide="prior", regulariser="draws"
        ),
        "CGP, draw, exact R": CGPAttention,
        "CGP, draw, R by draws": CGPAttention.partial(guide="prior", regulariser="draws"),
        "CGP, mean, no R": CGPAttention.partial(output="mean", alpha=0.0),
    }

    def case(factory: LayerFactory, batch: int, tokens: int) -> Step:
        return layer_step(factory, dim, heads, batch=batch, tokens=tokens)

    short = {name: case(factory, batch, tokens) for name, factory in factories.items()}
    growth = {f"sparse CGP, batch 1, N {number}": case(sparse, 1, number) for number in (long, longer)}
    rows = [row for cases in (short, growth) for row in _rows(_time(cases, repeats))]
    kept = {row["case"]: _kept_for_backward(step) for row, step in zip(rows[-2:], growth.values(), strict=True)}
    return {
        "title": f"forward + backward of one layer, dim {dim}, {heads} heads, batch {batch}, N {tokens}, float32",
        "repeats": repeats,
        "rows": rows,
        "kept": kept,
        "environment": environment("cpu"),
    }


def prediction(
    *, repeats: int, dim: int = 384, depth: int = 7, heads: int = 12, rank: int = 10, batch: int = 128
) -> dict[str, Any]:
    """Ten-draw prediction and training step of the CIFAR-10 ViT.

    Args:
        repeats: timed rounds.
        dim, depth, heads, rank: of the network, whose hidden width is ``dim``.
        batch: number of images.
    """

    def vit(attention: LayerFactory) -> ViT:
        attention = last(1, attention, of=depth)
        shape = {"dim": dim, "depth": depth, "heads": heads, "mlp_dim": dim}
        return ViT(image_size=32, patch_size=4, classes=10, dropout=0.1, attention=attention, **shape)

    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    softmax = vit(SoftmaxAttention)
    kep_svgp = KEPSVGPAttention.partial(rank=rank, merge="concat", tokens=64, eta=10.0)
    kep = Classifier(vit(kep_svgp), num_data=45_000)
    guide = guides.for_model(kep)
    predicting = {
        "deterministic forward, softmax ViT": forward_step(softmax, x),
        "ten-draw prediction, KEP-SVGP in the last layer": lambda: predict(kep, guide, x, num_draws=10),
    }
    training = {
        "training step, softmax ViT, plain torch": plain_training_step(softmax, x, y),
        "training step, KEP-SVGP in the last layer, SVI": svi_training_step(kep, guide, x, y),
    }
    return {
        "title": f"{depth}-layer ViT, dim {dim}, {heads} heads, batch {batch}, float32",
        "repeats": repeats,
        "rows": _rows(_time(predicting, repeats)) + _rows(_time(training, repeats)),
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
    """One step of SVI: ELBO, backward, Adam."""
    elbo = TraceMeanField_ELBO()(model, guide)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=1e-3)

    def step() -> None:
        elbo.train()
        optimizer.zero_grad()
        with draws("example"):
            (elbo(x, y) / model.num_data).backward()
        optimizer.step()

    return step


def _kept_for_backward(step: Step) -> float:
    """MiB of all tensors that autograd keeps between forward and backward, each storage once."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(storages.values()) / 2**20


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
