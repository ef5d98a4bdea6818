"""Check of KEP-SVGP's posterior on digits: guides against NUTS, PSIS k̂, simulation-based calibration (SBC)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.experiments.data.images.image_datasets import load
from probattn.experiments.plots.posterior_check import against_nuts, importance_weights, rank_histograms
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.studies.compare_posteriors import PosteriorComparison, compare_posteriors
from probattn.inference import (
    TrainOptions,
    fit,
    posterior_draws,
    psis_khat,
    refit_guide,
    simulation_based_calibration,
)
from probattn.inference.diagnostics.psis import PSIS
from probattn.inference.diagnostics.sbc import SBC
from probattn.inference.io.files import write_bytes
from probattn.inference.posterior.frozen import frozen
from probattn.models import Classifier, ViT

CLASSES = 3
NUMBER = 60
"""Number of images."""
STEPS = 50
"""Steps of an epoch of fitting a guide."""


@dataclass(frozen=True)
class PosteriorCheck:
    """Result of checking a layer's posterior.

    Args:
        draws: of NUTS, by site.
        quality: R̂, effective sample size and divergences of NUTS in words.
        comparison: guides against NUTS.
        khat: guide → PSIS k̂, of guides that have a density.
        sbc: guide → simulation-based calibration of u.
    """

    draws: dict[str, Tensor]
    quality: str
    comparison: PosteriorComparison
    khat: dict[str, PSIS]
    sbc: dict[str, SBC]

    def __str__(self) -> str:
        lines = [f"NUTS: {self.quality}", str(self.comparison)]
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
    *,
    seed: int = 0,
    num_samples: int = 1000,
    warmup_steps: int = 300,
    simulations: int = 100,
    epochs: int = 30,
    say: Callable[[str], None] = lambda text: None,
) -> PosteriorCheck:
    """Train a one-layer network on some digits 0 to 2, then compare guides of its latent variables with NUTS.

    Args:
        seed: seed of everything.
        num_samples, warmup_steps: draws and warm-up steps of NUTS.
        simulations: number of simulations of SBC; 0 skips it.
        epochs: epochs of fitting each guide, of :data:`STEPS` steps.
        say: called with a line of text when a part of the check begins.
    """
    torch.manual_seed(seed)
    x, y = _digits(NUMBER)
    network = ViT(
        image_size=8,
        patch_size=4,
        channels=1,
        classes=CLASSES,
        depth=1,
        mlp_dim=12,
        dim=6,
        heads=2,
        attention=KEPSVGPAttention.partial(rank=3),
    )
    model = Classifier(network, num_data=NUMBER).double()
    batches = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    say(f"training a kep-svgp network on {NUMBER} digits")
    fit(
        model,
        guides.for_model(model).double(),
        batches,
        options=TrainOptions(epochs=150, lr=1e-2, warmup_epochs=5),
        progress=False,
    )
    chosen = _guides(model)
    for number, (name, guide) in enumerate(chosen.items(), start=1):
        say(f"guide {number} of {len(chosen)}: {name}, {epochs} epochs of {STEPS} steps")
        _fit_guide(model, guide, (x, y), epochs=epochs)
    say(f"NUTS: {warmup_steps} + {num_samples} draws")
    with frozen(model):
        mcmc = MCMC(
            NUTS(model, init_strategy=init_to_sample),
            num_samples=num_samples,
            warmup_steps=warmup_steps,
            disable_progbar=True,
        )
        mcmc.run(x, y)
    draws, quality = mcmc.get_samples(), mcmc.diagnostics()
    r_hat = max(quality[site]["r_hat"].max().item() for site in draws)
    effective = min(quality[site]["n_eff"].min().item() for site in draws)
    divergences = len(quality["divergences"]["chain 0"])
    words = f"R̂ up to {r_hat:.3g}, effective sample size from {effective:.0f}, {divergences} divergent transitions"
    say("comparison of the guides with NUTS, and importance ratios")
    comparison = compare_posteriors(model, chosen, (x, y), reference=draws, num_samples=4000)
    dense = {name: guide for name, guide in chosen.items() if name != "delta"}
    khat = {name: psis_khat(model, guide, (x, y), num_samples=4000) for name, guide in dense.items()}
    sbc = {}
    for name in ("full", "joint") if simulations else ():
        say(f"calibration of {name}: {simulations} simulations, with a posterior of {epochs // 5} epochs each")

        def infer(*batch: Tensor, name: str = name) -> dict[str, Tensor]:
            guide = _guides(model)[name]
            _fit_guide(model, guide, batch, epochs=epochs // 5)
            return posterior_draws(model, guide, [batch], num_samples=99)

        sbc[name] = simulation_based_calibration(model, x, infer, num_simulations=simulations)
    return PosteriorCheck(draws, words, comparison, khat, sbc)


def _fit_guide(model: nn.Module, guide: nn.Module, batch: tuple[Tensor, ...], *, epochs: int) -> None:
    refit_guide(model, guide, STEPS * [batch], epochs=epochs, lr=0.5)


def _digits(number: int) -> tuple[Tensor, Tensor]:
    """Return ``number`` images ``(n, 1, 8, 8)`` in [0, 1], float64, and their labels."""
    data = load("digits").train
    chosen = (data.labels < CLASSES).nonzero()[:, 0][:number]
    return data.images[chosen].double() / 255, data.labels[chosen]


def _guides(model: nn.Module) -> dict[str, nn.Module]:
    """Return a new guide of each family and a joint Gaussian."""
    families = {name: guides.for_model(model, name).double() for name in ("full", "diagonal", "lowrank", "delta")}
    return families | {"joint": AutoMultivariateNormal(model)}
