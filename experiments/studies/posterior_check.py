"""Check of a small layer's posterior on digits: guides against NUTS, PSIS k̂, simulation-based calibration (SBC)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import CGPAttention, KEPSVGPAttention, guides, local_posteriors
from probattn.experiments.data.images.datasets import load
from probattn.experiments.plots.posterior_check import against_nuts, importance_weights, rank_histograms
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.studies.compare_posteriors import PosteriorComparison, compare_posteriors
from probattn.inference import (
    TrainOptions,
    fit,
    fit_guide,
    nuts,
    posterior_draws,
    psis_khat,
    simulation_based_calibration,
)
from probattn.inference.diagnostics.psis import PSIS
from probattn.inference.diagnostics.sbc import SBC
from probattn.inference.io.files import write_bytes
from probattn.inference.posterior.nuts import Chains
from probattn.models import Classifier, ViT

CLASSES = 3
SIZES = {
    "kep-svgp": (60, {"dim": 6, "heads": 2, "attention": KEPSVGPAttention.partial(rank=3)}),
    "cgp": (8, {"dim": 4, "heads": 1, "attention": CGPAttention.partial(collapsed=True, alpha=0.1)}),
}
"""Number of images and network of each layer."""


@dataclass(frozen=True)
class PosteriorCheck:
    """Result of checking one layer's posterior.

    Args:
        chains: NUTS chains.
        comparison: guides against NUTS.
        khat: guide → PSIS k̂, of guides that have a density.
        sbc: guide → simulation-based calibration of u; empty without a global site.
    """

    chains: Chains
    comparison: PosteriorComparison
    khat: dict[str, PSIS]
    sbc: dict[str, SBC]

    def __str__(self) -> str:
        problems = "; ".join(self.chains.problems) or "no sign of trouble"
        lines = [f"NUTS: {problems}", str(self.comparison)]
        lines += [f"{name}: {each}" for name, each in self.khat.items()]
        lines += [f"calibration of {name}: {each}" for name, each in self.sbc.items()]
        return "\n".join(lines)

    def save(self, folder: Path) -> None:
        """Write the text, and a figure of each part."""
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "check.txt", f"{self}\n".encode())
        save_figure(folder / "against-nuts.svg", against_nuts(self.comparison))
        for name, each in self.khat.items():
            save_figure(folder / f"khat-{name}.svg", importance_weights(each))
        for name, each in self.sbc.items():
            save_figure(folder / f"calibration-{name}.svg", rank_histograms(each))


def posterior_check(
    layer: str,
    *,
    seed: int = 0,
    num_samples: int = 500,
    warmup_steps: int = 300,
    simulations: int = 100,
    steps: int = 1500,
    say: Callable[[str], None] = lambda text: None,
) -> PosteriorCheck:
    """Train a one-layer network on some digits 0 to 2, then compare guides of its latent variables with NUTS.

    Args:
        layer: ``kep-svgp`` or ``cgp``.
        seed: seed of everything.
        num_samples, warmup_steps: draws and warm-up steps of each of two chains.
        simulations: number of simulations of SBC; 0 skips it.
        steps: steps of fitting each guide.
        say: called with a line of text when a part of the check begins.
    """
    torch.manual_seed(seed)
    number, options = SIZES[layer]
    x, y = _digits(number)
    network = ViT(
        image_size=8, patch_size=4, channels=1, classes=CLASSES, depth=1, mlp_dim=2 * options["dim"], **options
    )
    model = Classifier(network, num_data=number).double()
    batches = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    say(f"training a {layer} network on {number} digits")
    fit(
        model,
        guides.for_model(model).double(),
        batches,
        options=TrainOptions(epochs=150, lr=1e-2, warmup_epochs=5),
        progress=False,
    )
    found = _guides(model)
    for number, (name, guide) in enumerate(found.items(), start=1):
        say(f"guide {number} of {len(found)}: {name}, {steps} steps")
        fit_guide(model, guide, (x, y), steps=steps)
    say(f"NUTS: 2 chains of {warmup_steps} + {num_samples} draws")
    chains = nuts(model, (x, y), num_samples=num_samples, warmup_steps=warmup_steps, num_chains=2)
    say("comparison of the guides with NUTS, and importance ratios")
    comparison = compare_posteriors(model, found, (x, y), reference=chains.draws, num_samples=4000)
    dense = {name: guide for name, guide in found.items() if name != "delta"}
    khat = {name: psis_khat(model, guide, (x, y), num_samples=4000) for name, guide in dense.items()}
    ranked = ("full", "joint") if layer == "kep-svgp" and simulations else ()
    sbc = {}
    for name in ranked:
        say(f"calibration of {name}: {simulations} simulations, with a posterior of {steps // 5} steps each")

        def infer(*batch: Tensor, name: str = name) -> dict[str, Tensor]:
            guide = _guides(model)[name]
            fit_guide(model, guide, batch, steps=steps // 5, lr=0.1)
            return posterior_draws(model, guide, [batch], num_samples=99)

        sbc[name] = simulation_based_calibration(model, x, infer, num_simulations=simulations)
    return PosteriorCheck(chains, comparison, khat, sbc)


def _digits(number: int) -> tuple[Tensor, Tensor]:
    """Return ``number`` images ``(n, 1, 8, 8)`` in [0, 1], float64, and their labels."""
    data = load("digits").train
    chosen = (data.labels < CLASSES).nonzero()[:, 0][:number]
    return data.images[chosen].double() / 255, data.labels[chosen]


def _guides(model: nn.Module) -> dict[str, nn.Module]:
    """Return a new guide of each family and a joint Gaussian; only the full one if all sites are local."""
    if not any(guides.latent_sites(model)):
        return {"full": guides.for_model(model)}
    families = {name: guides.for_model(model, name).double() for name in ("full", "diagonal", "lowrank", "delta")}
    return families | {"joint": AutoMultivariateNormal(local_posteriors(model))}
