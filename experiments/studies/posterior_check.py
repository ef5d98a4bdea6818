"""Check of KEP-SVGP's posterior on digits: guides against NUTS, PSIS k̂, simulation-based calibration (SBC)."""

from collections.abc import Callable

import pandas as pd
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, guides
from probattn.experiments.data.images.image_datasets import load
from probattn.experiments.studies.compare_posteriors import compare_posteriors
from probattn.inference import TrainOptions, fit, posterior_draws, psis_khat, refit_guide, simulation_based_calibration
from probattn.inference.posterior.frozen import frozen
from probattn.models import Classifier, ViT

CLASSES, NUMBER = 3, 60
"""Classes and images of the digits."""
STEPS = 50
"""Steps of an epoch of fitting a guide."""
DRAWS = 4000
"""Draws of each guide that are compared."""
CALIBRATED = ("full", "joint")
"""Guides that are checked by simulation-based calibration."""


def posterior_check(
    *,
    seed: int = 0,
    num_samples: int = 1000,
    warmup_steps: int = 300,
    simulations: int = 100,
    epochs: int = 30,
    say: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Train a one-layer network on some digits 0 to 2, then compare guides of its latent variables with NUTS.

    Args:
        seed: seed of everything.
        num_samples, warmup_steps: draws and warm-up steps of NUTS.
        simulations: number of simulations of SBC; 0 skips it.
        epochs: epochs of fitting each guide, of :data:`STEPS` steps.
        say: called with a line of text when a part of the check begins, and with NUTS' diagnostics.

    Returns:
        A row a guide: the columns of :func:`compare_posteriors`, ``khat`` and ``effective`` draws of PSIS,
        and ``calibration_p``, the p-value of uniform SBC ranks; NaN where a guide has no such number.
    """
    torch.manual_seed(seed)
    x, y = _digits()
    model = _trained(x, y, say)
    families = _guides(model)
    for name, guide in families.items():
        say(f"guide {name}: {epochs} epochs of {STEPS} steps")
        refit_guide(model, guide, STEPS * [(x, y)], epochs=epochs, lr=0.5)
    say(f"NUTS: {warmup_steps} + {num_samples} draws")
    draws = _nuts(model, (x, y), num_samples=num_samples, warmup_steps=warmup_steps, say=say)
    say("comparison of the guides with NUTS, and importance ratios")
    table = compare_posteriors(model, families, (x, y), reference=draws, num_samples=DRAWS)
    table = table.set_index("guide").drop(columns="site")
    for name in families:
        if name != "delta":  # a point mass has no density
            ratios = psis_khat(model, families[name], (x, y), num_samples=DRAWS)
            table.loc[name, ["khat", "effective"]] = ratios.khat, ratios.ess
    for name in CALIBRATED if simulations else ():
        say(f"calibration of {name}: {simulations} simulations, with a posterior of {epochs // 5} epochs each")

        def infer(*batch: Tensor, name: str = name) -> dict[str, Tensor]:
            guide = _guides(model)[name]
            refit_guide(model, guide, STEPS * [batch], epochs=epochs // 5, lr=0.5)
            return posterior_draws(model, guide, [batch], num_samples=99)

        sbc = simulation_based_calibration(model, x, infer, num_simulations=simulations)
        table.loc[name, "calibration_p"] = sbc.p_value
    return table


def _trained(x: Tensor, y: Tensor, say: Callable[[str], None]) -> Classifier:
    sizes = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": CLASSES, "depth": 1, "mlp_dim": 12, "dim": 6}
    network = ViT(heads=2, attention=KEPSVGPAttention.partial(rank=3), **sizes)
    model = Classifier(network, num_data=NUMBER).double()
    batches = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    say(f"training a kep-svgp network on {NUMBER} digits")
    options = TrainOptions(epochs=150, lr=1e-2, warmup_epochs=5)
    fit(model, guides.for_model(model).double(), batches, options=options, progress=False)
    return model


def _nuts(
    model: nn.Module, batch: tuple[Tensor, ...], *, num_samples: int, warmup_steps: int, say: Callable[[str], None]
) -> dict[str, Tensor]:
    """Return draws by site, and say their quality."""
    with frozen(model):
        kernel = NUTS(model, init_strategy=init_to_sample)
        mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True)
        mcmc.run(*batch)
    draws, quality = mcmc.get_samples(), mcmc.diagnostics()
    r_hat = max(quality[site]["r_hat"].max().item() for site in draws)
    effective = min(quality[site]["n_eff"].min().item() for site in draws)
    divergences = len(quality["divergences"]["chain 0"])
    say(f"R̂ up to {r_hat:.3g}, effective sample size from {effective:.0f}, {divergences} divergent transitions")
    return draws


def _digits() -> tuple[Tensor, Tensor]:
    """Return images ``(n, 1, 8, 8)`` in [0, 1], float64, and their labels."""
    data = load("digits").train
    chosen = (data.labels < CLASSES).nonzero()[:, 0][:NUMBER]
    return data.images[chosen].double() / 255, data.labels[chosen]


def _guides(model: nn.Module) -> dict[str, nn.Module]:
    """Return a new guide of each family and a joint Gaussian."""
    families = {name: guides.for_model(model, name).double() for name in ("full", "diagonal", "lowrank", "delta")}
    return families | {"joint": AutoMultivariateNormal(model)}
