"""Convergence of a guide: distance from its optimum and from the prior, and the effect of its draws on predictions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from probattn.guides import Guide
from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.diagnostics.convergence_records import Convergence, ParameterConvergence, SiteConvergence
from probattn.inference.diagnostics.guide_gradients import GradientPair, balance, gradients, scalars
from probattn.inference.diagnostics.posterior_collapse import posterior_summary, spread
from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.diagnostics.predictive_spread import predictive_spread
from probattn.inference.diagnostics.refit_gain import WHOLE, Measure, parameter_values, refit_gains, restored
from probattn.inference.elbo import ELBOLoss
from probattn.inference.posterior.frozen import frozen
from probattn.inference.posterior.refit_guide import refit_guide
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.programs import attribute
from probattn.messages import is_global_latent

DRAWS = 1000
"""Draws from which moments are estimated for guides other than this library's."""


def convergence(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    *,
    valid: Tensor | Iterable | None = None,
    initial: Mapping[str, Tensor] | None = None,
    total_lr: float | None = None,
    kl_weights: tuple[float, float] = (1.0, 1.0),
    refit_epochs: int = 5,
    max_examples: int = 1024,
    passes: int = 2,
    num_samples: int = 10,
) -> Convergence:
    """Test whether a guide has reached its optimum, whether that is the prior, and whether its draws matter.

    For each global latent site, with the network fixed and in evaluation mode:

    - *movement*: ``|θ − θ₀| / Σ_t lr_t`` of the guide's parameters. A step of Adam is at most about lr, so a ratio
      near 1 means that a parameter has moved in one direction at full speed throughout and has not arrived;
    - *balance of gradients* on each parameter: ‖g_KL‖ / ‖g_nll‖, their cosine, and ‖g_KL + g_nll‖ / (‖g_KL‖ + ‖g_nll‖),
      which are 1, −1 and 0 at an optimum, beside the noise of g_nll;
    - *refit*: gain of the ELBO by a few epochs of :func:`~probattn.inference.refit_guide`, a lower bound of its
      distance from the optimum, measured on the same batches and draws before and after;
    - KL and standard deviations relative to the prior's.

    On validation data: total variation of single draws and mutual information.

    Model, guide and PyTorch's generator are left unchanged.

    Args:
        model: the model.
        guide: its guide; movement and gradients are known only for guides of :func:`probattn.guides.for_model`.
        data: training batches ``(x, y)`` or ``(x, y, mask)`` on the model's device, read several times. Those of
            training: shuffled, augmented.
        valid: data as for :func:`~probattn.inference.predict`, for the spread of predictions.
        initial: the guide's parameters by name before training, such as a copy of its ``state_dict()``.
        total_lr: sum of the guide's learning rates over the steps of the run, under Adam.
        kl_weights: KL weights of global and local sites in the training's objective.
        refit_epochs: epochs of the refit, each of which reads all of ``data`` twice; 0 skips it. Models that do not
            broadcast over draws, and a KL weight of 0, have no refit.
        max_examples: number of training examples, in whole batches, on which gradients and gain are measured.
        passes: number of passes over them, each with its own draws; at least 2.
        num_samples: draws of the prediction.

    Returns:
        Verdicts by site; no sites for a model without global latent variables.

    Raises:
        ValueError: a guide of another model, or no data.
    """
    batches = list(_first_examples(data, max_examples))
    if not batches:
        raise ValueError("convergence needs training data, and there is no batch")
    guide_checks.materialise(guide, batches[0])
    guide_checks.check(model, guide)
    with torch.random.fork_rng(), frozen(model):
        predictive = None if valid is None else predictive_spread(model, guide, valid, num_samples=num_samples)
        with restored(guide):
            summaries, before = _summaries(model, guide, batches[0]), parameter_values(guide)
            if not summaries or not before:
                return Convergence(sites=(), predictive=predictive)
            options = {"weights": kl_weights, "per_example": broadcasts(model, guide, lambda: batches[0])}
            pairs = gradients(model, guide, batches, passes=passes, **options) if isinstance(guide, Guide) else {}
            refits = {}
            if refit_epochs and options["per_example"] and kl_weights[0] > 0:

                def refit() -> None:
                    weights = dict(zip(("kl_weight", "local_kl_weight"), kl_weights, strict=True))
                    refit_guide(model, guide, data, epochs=refit_epochs, **weights)

                refits = refit_gains(Measure(model, guide, batches, passes=passes, **options), refit)
    num_data = attribute(model, "num_data") or sum(len(batch[0]) for batch in batches)
    sites = tuple(
        SiteConvergence(
            **row,
            num_data=num_data,
            parameters=_parameters(row["site"], before, pairs, initial=initial, total_lr=total_lr),
            refit=refits.get(row["site"], refits.get(WHOLE)),
            unknown=_unknown(guide, row["site"]),
        )
        for row in summaries
    )
    return Convergence(sites=sites, refit=refits.get(WHOLE), predictive=predictive)


def _parameters(
    site: str,
    now: Mapping[str, Tensor],
    pairs: Mapping[str, GradientPair],
    *,
    initial: Mapping[str, Tensor] | None,
    total_lr: float | None,
) -> tuple[ParameterConvergence, ...]:
    found = []
    for path in (path for path in pairs if path.startswith(f"{site}.")):
        shifts: tuple[float | None, float | None] = None, None
        if initial is not None and total_lr:
            shift = scalars(path, (now[path] - initial[path].to(now[path])).abs() / total_lr)
            shifts = shift.max().item(), shift.mean().item()
        name = path.removeprefix(f"{site}.")
        largest, mean = shifts
        found.append(
            ParameterConvergence(name=name, largest_shift=largest, mean_shift=mean, gradients=balance(pairs[path]))
        )
    return tuple(found)


def _summaries(model: nn.Module, guide: nn.Module, batch: tuple) -> list[dict[str, Any]]:
    """Return name, size, KL and standard deviations of each global latent site."""
    own = set(guide.sites) if isinstance(guide, Guide) else set()
    rows = []
    for row in posterior_summary(model, guide) if own else ():
        rows.append({"site": row["site"], "size": row["size"], "kl": row["kl"], "std_ratio": row["std_ratio"]})
    loss = ELBOLoss(model, guide)
    with torch.no_grad():
        loss(*batch)
    trace = loss.traces[0]
    others = [n for n in trace.stochastic_nodes if n not in own and is_global_latent(trace.nodes[n], trace)]
    return rows + [_estimated_summary(model, guide, name, batch[0][:2]) for name in others]


def _estimated_summary(model: nn.Module, guide: nn.Module, site: str, x: Tensor) -> dict[str, Any]:
    """Summarise a site by the moments of draws from q and from the prior."""
    with record([site]) as posterior:
        predict(model, guide, x, num_samples=DRAWS)
    with record([site]) as prior:
        predict(model, None, x, num_samples=DRAWS)
    q, p = posterior.latents[site].double().flatten(1), prior.latents[site].double().flatten(1)
    ratio, shift = q.std(0) / p.std(0), (q.mean(0) - p.mean(0)) / p.std(0)
    kl = 0.5 * (ratio.square() + shift.square() - 1 - 2 * ratio.log()).sum().item()
    return {"site": site, "size": q.shape[1], "kl": kl, "std_ratio": spread(ratio)}


def _first_examples(data: Iterable, number: int) -> Iterator[tuple]:
    """Yield the first batches until they hold ``number`` examples."""
    count = 0
    for batch in data:
        arguments = unpack_batch(batch).arguments()
        yield arguments
        count += len(arguments[0])
        if count >= number:
            return


def _unknown(guide: nn.Module, site: str) -> str:
    if isinstance(guide, Guide) and site in guide.sites:
        return ""
    kind = type(guide.rest if isinstance(guide, Guide) else guide).__name__
    return f"{kind} has no parameters of single sites, so their movement and gradients are not measured"
