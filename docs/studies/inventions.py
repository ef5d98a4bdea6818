"""MNIST with anchored attention and what else this library has: depths, groups of heads, and
branches of the last block.

What is best on splits from 20 on, which no other study has, is tested on the others. The settings
are those of anchored attention on the splits of *When does it help?*. A second call continues::

    python -m docs.studies.inventions --splits 20,21 --out inventions.csv
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyro.distributions as dist
import torch
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn

from docs.studies.ensembles import MNIST
from docs.studies.kept_results import KeptResults, with_scaling
from probattn import guides
from probattn.experiments.config.presets import preset
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.runs.build import build_model, loaders
from probattn.experiments.runs.sources import load_data
from probattn.inference import Logits, PosteriorPredictive, Predictor, fit
from probattn.inference.posterior.branches import Branches
from probattn.models import Classifier, Depths, Members, group_heads
from probattn.models.blocks import Transformer

CHANGES = [
    MNIST,
    "network.patch_size=4",
    "network.standardise=true",
    "train.lr=0.001",
    "layer.anchors=16",
]
EPOCHS = 30
BRANCHES = 3
SHARE = 0.3
"""Share of the images that all branches predict."""
SUMMED_OUT = {"elbo": "enum", "samples_per": "batch"}
"""Options of training with a member that is summed out."""


def alone(network: Transformer) -> nn.Module:
    """Return the network."""
    return network


def depths(network: Transformer) -> nn.Module:
    """Return the network with its depth as a latent variable."""
    return Members(Depths(network), len(network.blocks))


def heads(network: Transformer) -> nn.Module:
    """Return the network with two groups of heads as a latent variable."""
    return Members(group_heads(network, 2), 2)


def branches(network: Transformer) -> nn.Module:
    """Return the network with priors N(0, 1 / inputs) for the weights after the last block's
    attention."""
    block = network.blocks[-1]
    to_pyro_module_(block.mlp)
    for module in block.mlp.modules():
        if isinstance(module, nn.Linear):
            shape = module.weight.shape
            del module.weight
            prior = dist.Normal(0.0, shape[1] ** -0.5).expand(shape).to_event(2)
            module.weight = PyroSample(prior)
    return network


PROGRAMS: dict[str, Callable[[Transformer], nn.Module]] = {
    "anchored": alone,
    "anchored, depths": depths,
    "anchored, groups of heads": heads,
    "anchored, branches": branches,
}
"""Name → network from one with anchored attention."""


def train(name: str, settings: Settings, dataset: Dataset) -> Predictor:
    """Train a network and return its predictor."""
    base = build_model(settings, dataset)
    network = PROGRAMS[name](base.network)
    model = Classifier(network, num_data=len(dataset.train))
    batches = loaders(settings, dataset, device="cpu")
    options = settings.train.options
    if isinstance(network, Members):
        options = replace(options, **SUMMED_OUT)
    has_branches = name.endswith("branches")
    rest = partial(Branches, branches=BRANCHES) if has_branches else None
    guide = guides.for_model(model, rest=rest)
    fit(model, guide, *batches, options=options, progress=False)
    if isinstance(network, Members):
        return Logits(Mixture(network))
    if not has_branches:
        return PosteriorPredictive(model, guide, num_samples=1)
    return PosteriorPredictive(model, guide, num_samples=BRANCHES, refine=SHARE)


class Mixture(nn.Module):
    """Log probabilities of a network whose member is summed out, which are logits, too."""

    def __init__(self, members: Members) -> None:
        super().__init__()
        self.members = members

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log Σ_k p(k) p(y | x, k), ``(batch, classes)``."""
        weights = self.members.logits.log_softmax(-1)
        of_members = self.members.network(x).log_softmax(-1)
        return (of_members + weights[:, None, None]).logsumexp(0)


def main() -> None:
    """Train what the results lack, and write them after each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", default="20,21,22")
    parser.add_argument("--programs", default=";".join(PROGRAMS))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = KeptResults(arguments.out)
    splits = map(int, arguments.splits.split(","))
    names = arguments.programs.split(";")
    for seed in splits:
        numbers = [f"data.seed={seed}", f"train.seed={seed}"]
        settings = preset("digits/anchored").with_changes([*CHANGES, *numbers], epochs=EPOCHS)
        dataset = load_data(settings, None)
        for name in names:
            run = f"mnist/{name}"
            if (run, seed) in results.done:
                continue
            predictor = train(name, settings, dataset)
            plain = {}
            for part in ("valid", "test"):
                batches = dataset.batches(getattr(dataset, part), batch_size=250, device="cpu")
                torch.manual_seed(seed)
                plain[part] = predictor.predict(batches)
            results.add(run, seed, with_scaling(plain), dataset.test.keys)
            print(f"split {seed}, {name}", flush=True)


if __name__ == "__main__":
    main()
