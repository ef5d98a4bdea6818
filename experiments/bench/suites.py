"""The benchmarks of BENCHMARKS.md; each yields its sections as they are measured."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
import pyro
import torch
from torch import nn

import probattn
from probattn.experiments.bench.measure import measure, summary
from probattn.experiments.bench.steps import batch_of, layer_step, training_steps
from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.images.image_datasets import ImageDataset, Images
from probattn.experiments.runs.build import build, loaders
from probattn.inference import fit, predict

LAYERS = {
    "softmax": probattn.SoftmaxAttention,
    "KEP-SVGP concat": probattn.KEPSVGPAttention.partial(rank=10, merge="concat", tokens=64),
    "KEP-SVGP add": probattn.KEPSVGPAttention.partial(rank=10, merge="add"),
    "kernel": probattn.KernelAttention,
    "SGPA": probattn.SGPAttention.partial(inducing=16),
    "SGPA, joint": probattn.SGPAttention.partial(inducing=16, draws="joint"),
    "sparse CGP": probattn.SparseCGPAttention.partial(inducing=16),
    "sparse CGP, collapsed": probattn.SparseCGPAttention.partial(inducing=16, collapsed=True),
    "CGP": probattn.CGPAttention,
    "CGP, collapsed": probattn.CGPAttention.partial(collapsed=True),
    "CGP, collapsed, mean, no R": probattn.CGPAttention.partial(collapsed=True, output="mean", alpha=0.0),
}
# Sections of :func:`layers`.
SHAPES = (
    ({"dim": 384, "heads": 12, "batch": 128, "tokens": 64}, ("softmax", "KEP-SVGP concat", "KEP-SVGP add")),
    ({"dim": 384, "heads": 12, "batch": 1, "tokens": 4096}, ("softmax", "KEP-SVGP add")),
    ({"dim": 384, "heads": 12, "batch": 1, "tokens": 16384}, ("softmax", "KEP-SVGP add")),
    ({"dim": 128, "heads": 4, "batch": 25, "tokens": 64}, ("softmax", *list(LAYERS)[3:])),
)
SIZES = (256, 1024, 4096, 16384)
SCALED = ("softmax", "kernel", "KEP-SVGP add", "SGPA", "sparse CGP, collapsed", "CGP, collapsed")
# Numbers of tokens from which on a step takes more than ten seconds, or memory does not suffice.
LONGEST = {"kernel": 4096, "SGPA": 4096, "CGP, collapsed": 1024}
NETWORKS = {"softmax": "kep-svgp/cifar10-softmax", "KEP-SVGP": "kep-svgp/cifar10"}
# Changes to a ViT so small that the overhead of Pyro matters.
SMALL = ("network.dim=64", "network.depth=4", "network.heads=4", "network.mlp_dim=128", "data.batch_size=32")
# Images of an epoch.
IMAGES = {"cpu": 512, "cuda": 45_000}


def layers(*, rounds: int, device: str, changes: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """Yield forward and backward of one layer, relative to scaled-dot-product attention."""
    for shape, names in SHAPES:
        yield _layers(names, **shape, rounds=rounds, device=device)


def scaling(*, rounds: int, device: str, changes: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """Yield forward and backward of one layer at batch 1 for each number of tokens, and the powers of their growth."""
    sections = []
    for size in SIZES:
        names = [name for name in SCALED if size <= LONGEST.get(name, size)]
        sections.append(_layers(names, dim=128, heads=4, batch=1, tokens=size, rounds=rounds, device=device))
        yield sections[-1]
    yield growth(pd.concat(sections))


def growth(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the powers of N in time and memory by case, fitted to the last three sizes."""
    columns = ["tokens", "ms", "peak_mib"]
    logs = {name: np.log(case[columns].tail(3).to_numpy()) for name, case in rows.groupby("case", sort=False)}
    powers = {name: np.polyfit(log[:, 0], log[:, 1:], 1)[0] for name, log in logs.items()}
    table = pd.DataFrame.from_dict(powers, orient="index", columns=["time_power", "memory_power"])
    return table.rename_axis("case").reset_index().assign(section="growth over N")


def train(*, rounds: int, device: str, changes: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """Yield training steps, by SVI and by a loop without Pyro, and epochs by ``fit``, relative to softmax attention."""
    networks, dataset = _networks(changes, device=device), random_images(IMAGES[device])
    with pyro.validation_enabled(False):
        steps = {name: training_steps(settings, dataset, device=device) for name, settings in networks.items()}
        cases = {f"{name}, {way}": step for name, ways in steps.items() for way, step in ways.items()}
        yield measure("training step of the preset's ViT", cases, rounds=rounds, device=device)
        small = training_steps(networks["KEP-SVGP"].with_changes(SMALL), dataset, device=device)
        cases = dict(reversed(small.items()))
        yield measure("training step of a small ViT with KEP-SVGP", cases, rounds=5 * rounds, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for name, settings in 2 * list(networks.items()):
        batches = loaders(settings, dataset, device=device).train
        history = fit(*build(settings, dataset), batches, options=settings.train, progress=False)
        seconds[name] += [record["seconds"] for record in history.epochs[1:]]  # the first is a warm-up
    yield summary(f"an epoch of {len(dataset.train)} images by fit", seconds)


def prediction(*, rounds: int, device: str, changes: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """Yield ten posterior samples, relative to a deterministic forward pass of the softmax ViT."""
    networks, dataset = _networks(changes, device=device), random_images(IMAGES["cpu"])
    pairs = {name: nn.ModuleList(build(settings, dataset)).to(device) for name, settings in networks.items()}
    network, x = pairs["softmax"][0].network.eval(), batch_of(networks["softmax"], dataset, device=device)[0]
    cases = {
        "softmax, deterministic": torch.no_grad()(lambda: network(x)),
        "KEP-SVGP, 10 samples": lambda: predict(*pairs["KEP-SVGP"], x, num_samples=10),
    }
    yield measure("prediction of a batch", cases, rounds=rounds, device=device)


SUITES = {"layers": layers, "train": train, "predict": prediction, "scaling": scaling}


def _layers(names: Iterable[str], *, rounds: int, device: str, **shape: int) -> pd.DataFrame:
    cases = {name: layer_step(LAYERS[name], device=device, **shape) for name in names}
    title = ", ".join(f"{key} {value}" for key, value in shape.items())
    return measure(title, cases, rounds=rounds, device=device).assign(tokens=shape["tokens"])


def random_images(number: int) -> ImageDataset:
    """Return random images in the form of CIFAR-10, augmented in training."""
    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    images, half = Images(pixels, torch.randint(10, (number,))), (0.5, 0.5, 0.5)
    return ImageDataset("noise", tuple("0123456789"), images, images, images, mean=half, std=half, augment=True)


def _networks(changes: Sequence[str], *, device: str) -> dict[str, Settings]:
    """Return the settings of kep-svgp/cifar10 and its softmax baseline, for three epochs."""
    changes = [f"train.accelerator={device}", *changes]
    settings = {name: presets.preset(preset).with_changes(changes) for name, preset in NETWORKS.items()}
    return {name: choice.with_total_epochs(3) for name, choice in settings.items()}
