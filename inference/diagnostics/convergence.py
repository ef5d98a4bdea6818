"""Convergence of a guide: distance from its optimum and from the prior, and the effect of its draws on predictions."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probattn.guides import Guide
from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.diagnostics.convergence_records import Convergence, PredictiveSpread, SiteConvergence
from probattn.inference.diagnostics.posterior_collapse import posterior_summary, spread
from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.elbo import ELBOLoss
from probattn.inference.posterior.frozen import frozen
from probattn.inference.posterior.refit_guide import refit_guide, weighted_loss
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.programs import attribute

DRAWS = 1000
"""Draws from which moments are estimated for guides other than this library's."""
MIN_DRAWS = 128
"""Draws per batch, at least: with fewer examples, several draws each."""
EXAMPLES = 1024
"""Training examples on which a gain is measured, at least, in whole batches."""
PASSES = 4
"""Passes over the examples on which a gain is measured, each with its own draws."""


def convergence(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    *,
    valid: Tensor | Iterable | None = None,
    kl_weights: tuple[float, float] = (1.0, 1.0),
    refit_epochs: int = 5,
    num_samples: int = 10,
) -> Convergence:
    """Test whether a guide has reached its optimum, whether that is the prior, and whether its draws matter.

    For each global latent site, with the network fixed and in evaluation mode:

    - *refit*: gain of the ELBO by a few epochs of :func:`~probattn.inference.refit_guide`, a lower bound of its
      distance from the optimum, measured on the same batches and draws before and after;
    - KL and standard deviations relative to the prior's.

    On validation data: total variation of single draws and mutual information.

    Model, guide and PyTorch's generator are left unchanged; copies are refitted.

    Args:
        model: the model.
        guide: its guide. Of another guide than this library's, all sites are refitted together.
        data: training batches ``(x, y)`` or ``(x, y, mask)`` on the model's device, read several times. Those of
            training: shuffled, augmented.
        valid: data as for :func:`~probattn.inference.predict`, for the spread of predictions.
        kl_weights: KL weights of global and local sites in the training's objective.
        refit_epochs: epochs of the refit, each of which reads all of ``data`` twice; 0 skips it. Models that do not
            broadcast over draws, and a KL weight of 0, have no refit.
        num_samples: draws of the prediction.

    Returns:
        Verdicts by site; no sites for a model without global latent variables.

    Raises:
        ValueError: a guide of another model, or no data.
    """
    batches, count = [], 0
    for batch in data:
        batches.append(unpack_batch(batch).arguments())
        count += len(batches[-1][0])
        if count >= EXAMPLES:
            break
    if not batches:
        raise ValueError("convergence needs training data, and there is no batch")
    guide_checks.materialise(guide, batches[0])
    guide_checks.check(model, guide)
    num_data = attribute(model, "num_data") or count
    model, guide = copy.deepcopy((model, guide))
    guide.requires_grad_(True)
    with torch.random.fork_rng(), frozen(model):
        predictive = None if valid is None else predictive_spread(model, guide, valid, num_samples=num_samples)
        sites = _summaries(model, guide, batches[0][0][:2])
        sites = sites if any(True for _ in guide.parameters()) else []
        if sites and refit_epochs and kl_weights[0] > 0 and broadcasts(model, guide, lambda: batches[0]):
            names = [site["site"] for site in sites]
            gains = _refit(model, guide, data, batches, names=names, epochs=refit_epochs, weights=kl_weights)
            sites = [site | gain for site, gain in zip(sites, gains, strict=True)]
    return Convergence(sites=tuple(SiteConvergence(num_data=num_data, **site) for site in sites), predictive=predictive)


def predictive_spread(
    model: nn.Module, guide: nn.Module, data: Tensor | Iterable, *, num_samples: int = 10
) -> PredictiveSpread | None:
    """Measure how far the predictions of single draws are apart; None for likelihoods other than categorical.

    Args:
        model, guide, data, num_samples: as for :func:`~probattn.inference.predict`.
    """
    prediction = predict(model, guide, data, num_samples=num_samples, keep_draws=True)
    if prediction.draws is None:
        return None
    prediction = prediction if prediction.mask is None else prediction.tokens()
    information = prediction.mutual_information.double()
    return PredictiveSpread(
        total_variation=0.5 * (prediction.draws - prediction.probs).abs().sum(-1).mean().item(),
        entropy=prediction.entropy.mean().item(),
        mutual_information=information.mean().item(),
        mutual_information_95=information.quantile(0.95).item(),
    )


def _refit(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    batches: Sequence[tuple],
    *,
    names: Sequence[str],
    epochs: int,
    weights: tuple[float, float],
) -> list[dict[str, float]]:
    """Refit a guide, and return the gain of each site in nats of the data set, measured on some batches."""
    loss_of, seed = ELBOLoss(model, guide), int(torch.randint(2**31, ()))
    sizes = torch.tensor([float(len(batch[0])) for batch in batches])
    shares = (sizes / sizes.mean()).repeat(PASSES)

    @torch.no_grad()
    def losses(values: Mapping[str, Tensor]) -> Tensor:
        """Return −ELBO of the data set by each batch, with these values of the guide's parameters."""
        for name, value in values.items():
            guide.get_parameter(name).copy_(value)
        torch.manual_seed(seed)
        rows = []
        for batch in batches * PASSES:
            counts = ("example", max(1, MIN_DRAWS // len(batch[0])))
            rows.append(weighted_loss(loss_of, batch, counts=counts, weights=weights))
        return torch.stack(rows).cpu().double()

    initial = _values(guide)
    before = losses(initial)
    refit_guide(model, guide, data, epochs=epochs, kl_weight=weights[0], local_kl_weight=weights[1])
    refitted, gains = _values(guide), []
    for site in names:  # alone, where its parameters are known
        is_own = isinstance(guide, Guide) and site in guide.sites
        changed = {name: value for name, value in refitted.items() if not is_own or name.startswith(f"{site}.")}
        differences = before - losses(initial | changed)
        error = differences.std().item() / len(differences) ** 0.5
        gains.append({"gain": (shares * differences).mean().item(), "gain_error": error})
    return gains


def _summaries(model: nn.Module, guide: nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """Return name, size, KL and standard deviations of each global latent site."""
    rows = posterior_summary(model, guide) if isinstance(guide, Guide) else []
    rows = [{key: row[key] for key in ("site", "size", "kl", "std_ratio")} for row in rows]
    if isinstance(guide, Guide) and guide.rest is None:
        return rows
    sources = []
    for source in (guide, None):
        with record() as drawn:
            predict(model, source, x, num_samples=DRAWS)
        sources.append({name: draws.double().flatten(1) for name, draws in drawn.shared.items()})
    summarised = {row["site"] for row in rows}
    for name in [name for name in sources[0] if name not in summarised]:
        q, p = (draws[name] for draws in sources)
        ratio, shift = q.std(0) / p.std(0), (q.mean(0) - p.mean(0)) / p.std(0)
        kl = 0.5 * (ratio.square() + shift.square() - 1 - 2 * ratio.log()).sum().item()
        rows.append({"site": name, "size": q.shape[1], "kl": kl, "std_ratio": spread(ratio)})
    return rows


def _values(guide: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
