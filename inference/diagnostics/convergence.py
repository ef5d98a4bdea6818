"""Convergence and collapse of a guide: distance from its optimum and from the prior, and its effect on predictions."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from probattn.families import has_stddev, robust_moments
from probattn.guides import Guide, latent_sites
from probattn.inference.batches import unpack_batch
from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.posterior.fit_guide import Objective, refit_guide
from probattn.inference.posterior.frozen import frozen, prepared
from probattn.inference.prediction.predict import predict
from probattn.inference.programs import attribute

DRAWS = 1000
"""Draws from which moments are estimated for guides other than this library's."""
MIN_DRAWS = 128
"""Draws per batch, at least: with fewer examples, several draws each."""
BATCHES = 8
"""Training batches on which a gain is measured, at most."""
PASSES = 4
"""Passes over these batches on which a gain is measured, each with its own draws."""
MATERIAL_GAIN = 0.1
"""Nats per latent variable from which a gain by refitting counts: a Gaussian guide loses as much if its means are off
by 0.45 posterior standard deviations (½ δ²), or if its standard deviations are too small by a factor of 0.7."""
STANDARD_ERRORS = 3
"""Number of standard errors that a gain must exceed."""
COLLAPSED_KL = 0.05
"""Nats per variable below which a posterior counts as the prior: that of a mean shifted by 0.32 prior standard
deviations, or of 0.8 of the prior's standard deviation."""
INFORMED_STD = 0.5
"""Standard deviation, relative to the prior's, of a single variable below which its site has not collapsed: data have
told three times as much about it as the prior."""


@dataclass(frozen=True, kw_only=True)
class SiteConvergence:
    """Convergence of the guide at one global latent site.

    Args:
        site: its name.
        size: number of scalar variables.
        num_data: number of training examples.
        kl: KL(q ‖ prior) in nats; of Gaussians with the moments of draws for other guides than this library's.
        std_ratio: mean, smallest and largest ratio of posterior to prior standard deviation over its variables.
        gain: increase of the ELBO by refitting the guide at this site alone, in nats of the whole data set; None if it
            was not refitted. Of guides other than this library's, all sites are refitted.
        gain_error: its standard error.
    """

    site: str
    size: int
    num_data: int
    kl: float
    std_ratio: tuple[float, float, float]
    gain: float | None = None
    gain_error: float = 0.0

    @property
    def is_collapsed(self) -> bool:
        """True if q is close to the prior (see :data:`COLLAPSED_KL`), whether or not that is the optimum."""
        return self.kl < COLLAPSED_KL * self.size and self.std_ratio[1] > INFORMED_STD

    @property
    def is_converged(self) -> bool | None:
        """True if refitting gains practically nothing (see :data:`MATERIAL_GAIN`); None if it was not measured."""
        if self.gain is None:
            return None
        return self.gain <= max(MATERIAL_GAIN * self.size, STANDARD_ERRORS * self.gain_error)  # False for NaN

    @property
    def state(self) -> str:
        """The verdict: ``"not converged"``, ``"collapsed"`` to the prior, ``"alive"``, or ``"unknown"``."""
        word = {True: "alive", False: "not converged", None: "unknown"}[self.is_converged]
        return "collapsed" if self.is_collapsed and self.is_converged is not False else word


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Convergence of a guide; ``print`` displays a table.

    Args:
        sites: one entry per global latent site.
        predictive: spread of the predictions on validation data (see :func:`predictive_spread`); None without them, or
            without classes.
    """

    sites: tuple[SiteConvergence, ...]
    predictive: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers and verdicts as a dict of JSON's types."""
        return asdict(self) | {"sites": [asdict(site) | {"state": site.state} for site in self.sites]}

    def __str__(self) -> str:
        lines = [
            f"{'verdict':15}{'refit gains, nats per example':>30}{'KL, nats per variable':>23}{'sd / prior':>12}  site"
        ]
        for site in self.sites:
            gain = "unknown" if site.gain is None else f"{site.gain / site.num_data:.2g}"
            lines.append(f"{site.state:15}{gain:>26}{site.kl / site.size:19.2g}{site.std_ratio[0]:12.2f}  {site.site}")
        return "\n".join(lines)


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
        refit_epochs: epochs of the refit, each of which reads all of ``data`` twice; 0 skips it, as does a
            KL weight of 0.
        num_samples: draws of the prediction.

    Returns:
        Verdicts by site; no sites for a model without global latent variables.

    Raises:
        ValueError: a guide of another model, or no data.
    """
    batches = [unpack_batch(batch).arguments() for batch in islice(data, BATCHES)]
    if not batches:
        raise ValueError("convergence needs training data, and there is no batch")
    prepared(model, guide, batches)
    model, guide = copy.deepcopy((model, guide))
    guide.requires_grad_(True)
    with torch.random.fork_rng(), frozen(model):
        predictive = None if valid is None else predictive_spread(model, guide, valid, num_samples=num_samples)
        rows = _moments(model, guide, batches[0][0][:2]) if any(True for _ in guide.parameters()) else []
        if rows and refit_epochs and kl_weights[0] > 0:
            options = {"epochs": refit_epochs, "kl_weight": kl_weights[0], "local_kl_weight": kl_weights[1]}
            gains = _gains(model, guide, data, batches, [row["site"] for row in rows], **options)
            rows = [row | gain for row, gain in zip(rows, gains, strict=True)]
    num_data = attribute(model, "num_data")
    return Convergence(sites=tuple(SiteConvergence(num_data=num_data, **row) for row in rows), predictive=predictive)


def predictive_spread(
    model: nn.Module, guide: nn.Module, data: Tensor | Iterable, *, num_samples: int = 10
) -> dict[str, float] | None:
    """Measure how far the predictions of single draws are apart; None for likelihoods other than categorical.

    Args:
        model, guide, data, num_samples: as for :func:`~probattn.inference.predict`.

    Returns:
        Means over examples: ``total_variation``, ½ Σ_c |p_s(c) − p̄(c)| between a draw and the mean prediction, in
        [0, 1]; ``entropy`` of the mean prediction, in nats; ``mutual_information`` between label and latent variables,
        and its 95 % quantile over examples, ``mutual_information_95``, in nats.
    """
    prediction = predict(model, guide, data, num_samples=num_samples, keep_draws=True)
    if prediction.draws is None:
        return None
    prediction = prediction if prediction.mask is None else prediction.tokens()
    information = prediction.mutual_information.double()
    spread = {
        "total_variation": 0.5 * (prediction.draws - prediction.probs).abs().sum(-1).mean(),
        "entropy": prediction.entropy.mean(),
        "mutual_information": information.mean(),
        "mutual_information_95": information.quantile(0.95),
    }
    return {name: value.item() for name, value in spread.items()}


def posterior_summary(model: nn.Module, guide: Guide, *, num_samples: int = 100) -> list[dict[str, Any]]:
    """Summarise how far q is from the prior, one row per global latent site.

    A layer with parameters of its own in place of a site, such as
    :class:`~probattn.attention.kep_svgp_authors.AuthorsKEPSVGPAttention`, has a row by its ``posterior_and_prior``.

    Args:
        model: the model.
        guide: a guide of :func:`probattn.guides.for_model`.
        num_samples: number of draws to estimate a KL without closed form.

    Returns:
        ``site``; ``kl`` in nats; ``size``, the number of scalars; ``prior_std`` and ``posterior_std``, averaged over
        scalars; ``std_ratio``, mean, smallest and largest ratio of the two over scalars; ``posterior_mean_rms``, root
        mean square of the posterior mean. Where moments do not exist (HalfCauchy), median and scaled median absolute
        deviation of draws.
    """
    with torch.no_grad():
        laws = [(site, guide.get_submodule(site)(prior), prior) for site, prior in latent_sites(model)]
        for name, layer in model.named_modules():
            if hasattr(layer, "posterior_and_prior"):
                laws.append((f"{name}.u", *layer.posterior_and_prior()))
        return [_summary(*entry, num_samples=num_samples) for entry in laws]


def _summary(
    site: str, posterior: dist.TorchDistribution, prior: dist.TorchDistribution, *, num_samples: int
) -> dict[str, Any]:
    try:
        kl = kl_divergence(posterior, prior)
    except NotImplementedError:
        u = posterior.sample((num_samples,))
        kl = (posterior.log_prob(u) - prior.log_prob(u)).mean(0)
    (_, prior_std), (mean, std) = (
        (law.mean, law.stddev) if has_stddev(law) else robust_moments(law.sample((1001,))) for law in (prior, posterior)
    )
    return {
        "site": site,
        "kl": kl.sum().item(),
        "size": prior.event_shape.numel(),
        "prior_std": prior_std.mean().item(),
        "posterior_std": std.mean().item(),
        "std_ratio": _spread(std / prior_std),
        "posterior_mean_rms": mean.square().mean().sqrt().item(),
    }


def _spread(values: Tensor) -> tuple[float, float, float]:
    """Return mean, smallest and largest value."""
    return values.mean().item(), values.min().item(), values.max().item()


def _moments(model: nn.Module, guide: nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """Return name, size, KL and standard deviations of each global latent site of a guide."""
    if isinstance(guide, Guide) and guide.rest is None:
        rows = [row for row in posterior_summary(model, guide) if row["site"] in guide.sites]
        return [{key: row[key] for key in ("site", "size", "kl", "std_ratio")} for row in rows]
    sources = []
    for source in (guide, None):
        with record(DRAWS) as drawn:
            predict(model, source, x, num_samples=DRAWS)
        sources.append({site: draws.double().flatten(1) for site, draws in drawn.shared.items()})
    rows = []
    for site, q in sources[0].items():
        p = sources[1][site]
        ratio, shift = q.std(0) / p.std(0), (q.mean(0) - p.mean(0)) / p.std(0)
        kl = 0.5 * (ratio.square() + shift.square() - 1 - 2 * ratio.log()).sum().item()
        rows.append({"site": site, "size": q.shape[1], "kl": kl, "std_ratio": _spread(ratio)})
    return rows


def _gains(
    model: nn.Module, guide: nn.Module, data: Iterable, batches: Sequence[tuple], sites: Sequence[str], **options: Any
) -> list[dict[str, float]]:
    """Refit a guide, and return the gain of each site in nats of the data set, measured on some batches."""
    weights = (options["kl_weight"], options["local_kl_weight"])
    number = max(1, MIN_DRAWS // len(batches[0][0]))
    objective = Objective(model, guide, [*batches] * PASSES, num_samples=number, weights=weights)
    initial, (before, sizes) = copy.deepcopy(guide.state_dict()), objective.estimate()
    refit_guide(model, guide, data, **options)
    refitted, gains = copy.deepcopy(guide.state_dict()), []
    for site in sites:  # alone, where its parameters are known
        is_own = isinstance(guide, Guide) and site in guide.sites
        changed = {name: value for name, value in refitted.items() if not is_own or name.startswith(f"{site}.")}
        guide.load_state_dict(initial | changed)
        differences = objective.estimate()[0] - before
        error = differences.std().item() / len(differences) ** 0.5
        gains.append({"gain": (differences @ sizes / sizes.sum()).item(), "gain_error": error})
    return gains
