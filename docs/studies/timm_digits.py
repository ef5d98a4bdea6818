"""A ViT of timm on the digits of scikit-learn, on a new split for each seed, with other attention.

Positions start with timm's standard deviation of 0.02 or with 0.5, dropout is 0 or 0.2; each
network is trained for 60 epochs, and its epoch and temperature are chosen on validation data. The
results are a CSV and the kept predictions, which a second call continues::

    python -m docs.studies.timm_digits --seeds 6 --out experiments/results/timm-digits.csv
"""

import argparse
import itertools
from pathlib import Path

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from docs.studies.kept_results import KeptResults, Predictions, with_scaling
from probattn import AnchoredAttention, KEPSVGPAttention, RFFGPAttention, guides
from probattn.experiments.data.dataset import Part
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.known_sets import load
from probattn.inference import PosteriorPredictive, TrainOptions, fit
from probattn.models import Classifier, replace_attention

STARTS = {"positions 0.02": (0.02, 0.0), "positions 0.5, dropout 0.2": (0.5, 0.2)}
"""Name → standard deviation of the initial positions, and rate of dropout."""
LAYERS = {
    "softmax": (None, None),
    "kep-svgp": (KEPSVGPAttention.partial(rank=8, eta=10.0, merge="concat", tokens=17), "last"),
    "anchored": (AnchoredAttention.partial(anchors=32), "last"),
    "anchored, all blocks": (AnchoredAttention.partial(anchors=32), "all"),
    "rff-gpa": (RFFGPAttention.partial(features=32, symmetric=False), "last"),
}
"""Name → attention and the layers that it replaces; None keeps the attention of timm."""
SOFTMAX = "softmax"
EPOCHS = 60


def network(layer: str, start: str) -> nn.Module:
    """Return an untrained ViT whose attention is replaced."""
    deviation, dropout = STARTS[start]
    vit = timm.models.VisionTransformer(
        img_size=8,
        patch_size=2,
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
    return replace_attention(vit, attention=attention, layers=layers)


def standardised(part: Part) -> TensorDataset:
    """Return the images with mean 0 and standard deviation 1 each, and their labels."""
    pixels = part.images.float()
    mean = pixels.mean((1, 2, 3), keepdim=True)
    std = pixels.std((1, 2, 3), keepdim=True)
    return TensorDataset((pixels - mean) / std, part.labels)


def train(layer: str, start: str, dataset: ImageDataset, *, seed: int) -> PosteriorPredictive:
    """Train a network and return its posterior predictive."""
    torch.manual_seed(seed)
    examples = standardised(dataset.train)
    model = Classifier(network(layer, start), num_data=len(examples))
    guide = guides.for_model(model)
    options = TrainOptions(
        epochs=EPOCHS,
        lr=1e-3,
        warmup_epochs=2,
        min_lr=1e-5,
        guide_lr=0.03 if layer == "kep-svgp" else None,
        seed=seed,
        monitor="nll",
    )
    batches = DataLoader(examples, batch_size=64, shuffle=True)
    valid = DataLoader(standardised(dataset.valid), batch_size=359)
    fit(model, guide, batches, valid, options=options, progress=False)
    return PosteriorPredictive(model, guide, num_samples=10)


def predictions(layer: str, start: str, dataset: ImageDataset, *, seed: int) -> Predictions:
    """Return the predictions of one network, as it is and with temperature scaling."""
    predictor = train(layer, start, dataset, seed=seed)
    torch.manual_seed(seed)
    plain = {}
    for name, part in (("valid", dataset.valid), ("test", dataset.test)):
        plain[name] = predictor.predict(DataLoader(standardised(part), batch_size=359))
    return with_scaling(plain)


def main() -> None:
    """Train what the results lack, and write them after each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = KeptResults(arguments.out)
    for seed, start, layer in itertools.product(range(arguments.seeds), STARTS, LAYERS):
        run = f"timm/{layer} ({start})"
        if (run, seed) in results.done:
            continue
        dataset = load("digits", seed=seed)
        of_network = predictions(layer, start, dataset, seed=seed)
        results.add(run, seed, of_network, dataset.test.keys)
        print(f"seed {seed}, {start}, {layer}", flush=True)


if __name__ == "__main__":
    main()
