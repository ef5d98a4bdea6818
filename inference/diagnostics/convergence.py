"""Convergence of a guide: distance from its optimum and from the prior, and the effect of its draws on predictions."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probattn.guides import Guide
from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.diagnostics.convergence_records import (
    Convergence,
    ParameterConvergence,
    PredictiveSpread,
    SiteConvergence,
)
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
    num_data = attribute(model, "num_data") or sum(len(batch[0]) for batch in batches)
    model, guide = copy.deepcopy((model, guide))
    guide.requires_grad_(True)
    sites = guide.sites if isinstance(guide, Guide) else ()
    values = _values(guide)
    with torch.random.fork_rng(), frozen(model):
        predictive = None if valid is None else predictive_spread(model, guide, valid, num_samples=num_samples)
        rows = _summaries(model, guide, batches[0][0][:2])
        if not rows or not values:
            return Convergence(sites=(), predictive=predictive)
        objective = _Objective(model, guide, batches, kl_weights, passes)
        parameters = objective.parameters(initial, total_lr) if sites else []
        gains: dict[str, dict[str, float]] = {}
        if refit_epochs and objective.per_example and kl_weights[0] > 0:
            seed = int(torch.randint(2**31, ()))
            before = objective.losses(seed)
            weights = {"kl_weight": kl_weights[0], "local_kl_weight": kl_weights[1]}
            refit_guide(model, guide, data, epochs=refit_epochs, **weights)
            refitted = _values(guide)
            for site in [row["site"] for row in rows]:  # alone, where its parameters are known
                _assign(guide, refitted)
                if site in sites:
                    _assign(guide, {name: value for name, value in values.items() if not name.startswith(f"{site}.")})
                gains[site] = objective.gain(before, objective.losses(seed))
    return Convergence(
        sites=tuple(
            SiteConvergence(
                **row,
                **gains.get(row["site"], {}),
                num_data=num_data,
                parameters=tuple(parameter for site, parameter in parameters if site == row["site"]),
            )
            for row in rows
        ),
        predictive=predictive,
    )


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


def balance(kl: Tensor, likelihood: Tensor, noise: Tensor) -> dict[str, float]:
    """Compare the norms of two gradients; empty if both are 0.

    Args:
        kl, likelihood: gradients of the weighted KL, and of everything else.
        noise: standard error of ``likelihood``.

    Returns:
        ``ratio``, ``cosine``, ``residual`` and ``noise`` of
        :class:`~probattn.inference.diagnostics.convergence_records.ParameterConvergence`.
    """
    kl, likelihood = kl.double().flatten(), likelihood.double().flatten()
    norms = kl.norm() + likelihood.norm()
    if norms == 0:
        return {}
    cosine = torch.nn.functional.cosine_similarity(kl, likelihood, dim=0, eps=0.0).nan_to_num()
    residual, error = (kl + likelihood).norm() / norms, noise.double().norm() / norms
    values = {"ratio": kl.norm() / likelihood.norm(), "cosine": cosine, "residual": residual, "noise": error}
    return {name: value.item() for name, value in values.items()}


class _Objective:
    """−ELBO of the whole data set on fixed batches, as a function of a guide's parameters.

    Draws are for each example, if the model broadcasts over them, else for each batch.
    """

    def __init__(
        self, model: nn.Module, guide: nn.Module, batches: Sequence[tuple], weights: tuple[float, float], passes: int
    ) -> None:
        self.guide, self.batches, self.weights, self.passes = guide, batches, weights, passes
        self.per_example, self.loss_of = broadcasts(model, guide, lambda: batches[0]), ELBOLoss(model, guide)
        sizes = torch.tensor([float(len(batch[0])) for batch in batches])
        self.shares = (sizes / sizes.mean()).repeat(passes)

    def loss(self, batch: tuple, weight: float) -> Tensor:
        """Return −ELBO in nats, with a weight of the KL of global sites."""
        counts = ("example", max(1, MIN_DRAWS // len(batch[0]))) if self.per_example else ()
        return weighted_loss(self.loss_of, batch, counts=counts, weights=(weight, self.weights[1]))

    def gradient(self, batch: tuple, weight: float) -> list[Tensor]:
        """Return the gradients of the loss on the guide's parameters."""
        parameters, loss = list(self.guide.parameters()), self.loss(batch, weight)
        if not loss.requires_grad:
            return [torch.zeros_like(parameter) for parameter in parameters]
        return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))

    def parameters(
        self, initial: Mapping[str, Tensor] | None, total_lr: float | None
    ) -> list[tuple[str, ParameterConvergence]]:
        """Return movement and gradients of each parameter of a guide of this library, with its site.

        The KL of global sites does not depend on the data: its gradient is the difference of the whole gradient on the
        first batch and that without KL, with the same draws; so it is exact where the KL has a closed form.
        """
        kls = []
        for _ in range(self.passes):
            seed, pair = int(torch.randint(2**31, ())), []
            for weight in (self.weights[0], 0.0):
                torch.manual_seed(seed)
                pair.append(self.gradient(self.batches[0], weight))
            kls.append([whole - without for whole, without in zip(*pair, strict=True)])
        rest = [self.gradient(batch, 0.0) for batch in self.batches * self.passes]
        parameters = []
        for k, (path, value) in enumerate(self.guide.named_parameters()):
            site = next((site for site in self.guide.sites if path.startswith(f"{site}.")), None)
            if site is None:  # a parameter of the guide of the rest
                continue
            likelihoods = torch.stack([share * row[k] for share, row in zip(self.shares.tolist(), rest, strict=True)])
            error = likelihoods.std(0) / len(likelihoods) ** 0.5
            terms = torch.stack([row[k] for row in kls]).mean(0), likelihoods.mean(0), error
            values: dict[str, float] = balance(*(_compared(path, term) for term in terms))
            if initial is not None and total_lr:
                shift = _compared(path, value.detach() - initial[path].to(value)).abs() / total_lr
                values["largest_shift"] = shift.max().item()
            parameters.append((site, ParameterConvergence(name=path.removeprefix(f"{site}."), **values)))
        return parameters

    @torch.no_grad()
    def losses(self, seed: int) -> Tensor:
        """Return the losses of all passes and batches."""
        torch.manual_seed(seed)
        losses = [self.loss(batch, self.weights[0]) for batch in self.batches * self.passes]
        return torch.stack(losses).cpu().double()

    def gain(self, before: Tensor, after: Tensor) -> dict[str, float]:
        """Return the gain between two results of :meth:`losses`, with its standard error."""
        gains = before - after
        return {"gain": (self.shares * gains).mean().item(), "gain_error": gains.std().item() / len(gains) ** 0.5}


def _compared(name: str, value: Tensor) -> Tensor:
    """Return the entries of a parameter that are compared: of a Cholesky factor the diagonal, else all.

    Gradients off the diagonal do not shrink with the standard deviations, unlike those on it, and would hide them.
    """
    return value.diagonal(dim1=-2, dim2=-1) if name.endswith("raw_tril") else value


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


def _first_examples(data: Iterable, number: int) -> Iterator[tuple]:
    """Yield the first batches until they hold ``number`` examples."""
    count = 0
    for batch in data:
        arguments = unpack_batch(batch).arguments()
        yield arguments
        count += len(arguments[0])
        if count >= number:
            return


def _values(guide: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}


@torch.no_grad()
def _assign(guide: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        guide.get_parameter(name).copy_(value)
