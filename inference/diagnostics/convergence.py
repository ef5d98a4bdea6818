"""Convergence of a guide: distance from its optimum and from the prior, and the effect of its draws on predictions."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probattn import guides
from probattn.guides import Guide
from probattn.handlers import is_global_latent, kl_weight
from probattn.inference.diagnostics.guide_gradients import (
    GradientBalance,
    GradientPair,
    balance,
    gradients,
    objective,
    scalars,
)
from probattn.inference.diagnostics.posterior_collapse import posterior_summary, spread
from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.elbo import TraceMeanField_ELBO
from probattn.inference.posterior.frozen import frozen
from probattn.inference.posterior.refit_guide import refit_guide
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.vectorization import broadcasts
from probattn.programs import attribute, local_params

MATERIAL_GAIN = 0.1
"""Nats per latent variable from which a gain by refitting counts: a Gaussian guide loses as much if its means are off
by 0.45 posterior standard deviations (½ δ²), or if its standard deviations are too small by a factor of 0.7."""
SPEED_LIMIT = 0.8
"""Share of the sum of learning rates from which a parameter counts as limited by the optimiser: under a cosine
schedule, one that has moved so far was still moving at full speed after two thirds of the run."""
IMBALANCE = 0.5
"""Residual from which two gradients count as out of balance: one is then three times the other, or they do not oppose
each other."""
STANDARD_ERRORS = 3
"""Number of standard errors by which a gain or a residual must exceed its noise."""
COLLAPSED_KL = 0.05
"""Nats per variable below which a posterior counts as the prior: that of a mean shifted by 0.32 prior standard
deviations, or of 0.8 of the prior's standard deviation."""
INFORMED_STD = 0.5
"""Standard deviation, relative to the prior's, of a single variable below which its site has not collapsed: data have
told three times as much about it as the prior."""
DRAWS = 1000
"""Draws from which moments are estimated for guides other than this library's."""
SYMBOLS = {"loc": "m", "whitened": "m", "raw_tril": "S", "raw_scale": "S", "factor": "the factor of S"}
"""Symbols of the parameters of this library's guide families."""
WHOLE = ""
"""Key of the whole guide among its sites."""


@dataclass(frozen=True, kw_only=True)
class ParameterConvergence:
    """Movement and gradients of one parameter of a guide.

    Args:
        name: name in the guide, such as ``loc`` (m) or ``raw_tril`` (the Cholesky factor of S before its softplus, of
            which the diagonal counts).
        largest_shift, mean_shift: largest and mean |θ − θ₀| of its scalars relative to the sum of the guide's learning
            rates, Adam's reach; None if the start is unknown.
        gradients: balance of the gradients of KL and likelihood; None if both are 0.
    """

    name: str
    largest_shift: float | None = None
    mean_shift: float | None = None
    gradients: GradientBalance | None = None

    @property
    def symbol(self) -> str:
        """Its symbol in the text."""
        return SYMBOLS.get(self.name.rpartition(".")[2], self.name)

    @property
    def is_on_speed_limit(self) -> bool:
        """True if a scalar moved as far as the learning rates allowed (see :data:`SPEED_LIMIT`)."""
        return self.largest_shift is not None and self.largest_shift >= SPEED_LIMIT

    @property
    def is_out_of_balance(self) -> bool:
        """True if the gradients do not cancel (see :data:`IMBALANCE`), beyond their noise."""
        found = self.gradients
        return found is not None and found.residual > max(IMBALANCE, STANDARD_ERRORS * found.noise)


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Effect of refitting a guide with the network fixed.

    Args:
        gain: increase of the ELBO in nats of the whole data set.
        error: its standard error.
        kl, kl_before: KL of the global sites after and before, in nats, unweighted; None for other guides than this
            library's.
    """

    gain: float
    error: float
    kl_before: float | None
    kl: float | None

    def is_material(self, size: int) -> bool:
        """Return True if the gain counts for ``size`` latent variables (see :data:`MATERIAL_GAIN`)."""
        return not self.gain <= max(MATERIAL_GAIN * size, STANDARD_ERRORS * self.error)  # NaN counts, too


@dataclass(frozen=True, kw_only=True)
class SiteConvergence:
    """Convergence of the guide at one global latent site.

    Args:
        site: its name.
        size: number of scalar variables.
        num_data: number of training examples.
        kl: KL(q ‖ prior) in nats; of Gaussians with the moments of draws for other guides than this library's.
        std_ratio: mean, smallest and largest ratio of posterior to prior standard deviation over its variables.
        parameters: the guide's parameters at this site.
        refit: effect of refitting the guide at this site alone; None if it was not refitted.
        unknown: reason why movement and gradients are unknown; else empty.
    """

    site: str
    size: int
    num_data: int
    kl: float
    std_ratio: tuple[float, float, float]
    parameters: tuple[ParameterConvergence, ...] = ()
    refit: Refit | None = None
    unknown: str = ""

    @property
    def is_collapsed(self) -> bool:
        """True if q is close to the prior (see :data:`COLLAPSED_KL`), whether or not that is the optimum."""
        return self.kl < COLLAPSED_KL * self.size and self.std_ratio[1] > INFORMED_STD

    @property
    def is_converged(self) -> bool | None:
        """True if the guide is close to its optimum for this network; None if too little was measured.

        Where the guide was refitted, the gain decides, or a parameter that is on its speed limit and out of balance.
        Elsewhere each of these two is a sign that it is not.
        """
        limited = any(each.is_on_speed_limit for each in self.parameters)
        unbalanced = any(each.is_out_of_balance for each in self.parameters)
        if self.refit is not None:
            return not (self.refit.is_material(self.size) or (limited and unbalanced))
        if limited or unbalanced:
            return False
        return True if any(each.gradients for each in self.parameters) else None

    @property
    def verdict(self) -> str:
        """Convergence and collapse in words, with the evidence."""
        words = {
            True: "converged" + (f": {self._gain()}" if self.refit else ""),
            False: f"not converged: {'; '.join(self._evidence())}",
            None: f"unknown: {self.unknown or 'neither its gradients nor a refit were measured'}",
        }[self.is_converged]
        if self.is_collapsed:
            words += (
                f", and collapsed to the prior: KL {self.kl:.1f} nats for {self.size} variables, standard deviation "
                f"{self.std_ratio[0]:.2f} of the prior's"
            )
        return words

    def _evidence(self) -> Iterator[str]:
        for each in self.parameters:
            if each.is_on_speed_limit:
                yield f"{each.symbol} moved {each.largest_shift:.2f} of what the optimiser allowed"
            if each.is_out_of_balance:
                ratio = each.gradients.ratio
                pair = ("KL", "likelihood") if ratio >= 1 else ("likelihood", "KL")
                times = max(ratio, 1 / ratio) if ratio else math.inf
                direction = "" if times >= 1.5 else ", and they do not oppose each other"
                yield f"the {pair[0]}'s gradient on {each.symbol} is {times:.1f} times the {pair[1]}'s{direction}"
        if self.refit is not None and self.refit.is_material(self.size):
            yield self._gain()

    def _gain(self) -> str:
        gain, error = self.refit.gain, self.refit.error
        if gain <= max(0.1 * MATERIAL_GAIN * self.size, STANDARD_ERRORS * error):
            return "refitting gains practically nothing"
        return f"refitting gains {gain / self.num_data:.2g} nats per example"


@dataclass(frozen=True, kw_only=True)
class PredictiveSpread:
    """Spread of single draws in predictions of classes, averaged over examples.

    Args:
        total_variation: ½ Σ_c |p_s(c) − p̄(c)| between a draw and the mean prediction, in [0, 1].
        entropy: of the mean prediction, in nats.
        mutual_information, mutual_information_95: between label and latent variables in nats, mean and 95 % quantile.
    """

    total_variation: float
    entropy: float
    mutual_information: float
    mutual_information_95: float


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Convergence of a guide; ``print`` displays a verdict per site.

    Args:
        sites: one entry per global latent site.
        refit: effect of refitting the whole guide; None if it was not refitted.
        predictive: spread of the predictions on validation data; None without them, or without classes.
    """

    sites: tuple[SiteConvergence, ...]
    refit: Refit | None = None
    predictive: PredictiveSpread | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers and verdicts as a dict of JSON's types."""
        content = asdict(self)
        for row, site in zip(content["sites"], self.sites, strict=True):
            row |= {"verdict": site.verdict}
            for entry, parameter in zip(row["parameters"], site.parameters, strict=True):
                entry["gradients"] = parameter.gradients and parameter.gradients._asdict()
        return content

    def __str__(self) -> str:
        return "\n".join(f"{each.site}: {each.verdict}" for each in self.sites)


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

    - *movement*: |θ − θ₀| / Σ_t lr_t of the guide's parameters. A step of Adam is at most about lr, so a ratio near 1
      means that a parameter has moved in one direction at full speed throughout and has not arrived;
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
    with torch.random.fork_rng(), frozen(model), local_params(guide):
        guides.materialise(guide, batches[0])
        guides.check(model, guide)
        predictive = None if valid is None else predictive_spread(model, guide, valid, num_samples=num_samples)
        with _restored(guide):
            summaries, before = _summaries(model, guide, batches[0]), _values(guide)
            if not summaries or not before:
                return Convergence(sites=(), predictive=predictive)
            options = {"weights": kl_weights, "per_example": broadcasts(model, guide, lambda: batches[0])}
            pairs = gradients(model, guide, batches, passes=passes, **options) if isinstance(guide, Guide) else {}
            refits = {}
            if refit_epochs and options["per_example"] and kl_weights[0] > 0:

                def refit() -> None:
                    with kl_weight(1.0, local=kl_weights[1]):
                        refit_guide(model, guide, data, epochs=refit_epochs, kl_weight=kl_weights[0])

                refits = _refits(_Measure(model, guide, batches, passes=passes, **options), refit)
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


class _Measure:
    """−ELBO of the whole data set on fixed batches and draws, for several values of a guide's parameters."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        batches: Sequence[tuple],
        *,
        weights: tuple[float, float],
        passes: int,
        per_example: bool,
    ) -> None:
        self.model, self.guide, self.batches = model, guide, batches
        self.weights, self.passes, self.per_example = weights, passes, per_example
        self.seed = int(torch.randint(2**31, ()))
        sizes = torch.tensor([float(len(batch[0])) for batch in batches])
        self.shares = (sizes / sizes.mean()).repeat(passes)

    @torch.no_grad()
    def __call__(self, values: Mapping[str, Tensor]) -> tuple[Tensor, float | None]:
        """Return the losses of all passes and batches, and the unweighted KL."""
        _assign(self.guide, values)
        torch.manual_seed(self.seed)
        elbo, losses = TraceMeanField_ELBO(), []
        for batch in self.batches * self.passes:
            with objective(batch, self.weights, per_example=self.per_example):
                losses.append(elbo.differentiable_loss(self.model, self.guide, *batch))
        kl = None
        if isinstance(self.guide, Guide):
            kl = sum(row["kl"] for row in posterior_summary(self.model, self.guide))
        return torch.stack(losses).cpu().double(), kl

    def compare(self, base: tuple[Tensor, float | None], values: Mapping[str, Tensor]) -> Refit:
        """Return the gain of other values over ``base``."""
        losses, kl = self(values)
        gains = base[0] - losses
        error = gains.std().item() / len(gains) ** 0.5
        return Refit(gain=(self.shares * gains).mean().item(), error=error, kl_before=base[1], kl=kl)


def _refits(measure: _Measure, refit: Callable[[], None]) -> dict[str, Refit]:
    """Refit a guide; return the effect for the whole guide, and for each site of this library's guides alone."""
    guide, before = measure.guide, _values(measure.guide)
    base = measure(before)
    refit()
    after = _values(guide)
    found = {WHOLE: measure.compare(base, after)}
    for site in guide.sites if isinstance(guide, Guide) else ():
        own = {name: value for name, value in after.items() if name.startswith(f"{site}.")}
        found[site] = found[WHOLE] if len(own) == len(after) else measure.compare(base, before | own)
    return found


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
    elbo = TraceMeanField_ELBO()
    with torch.no_grad():
        elbo.differentiable_loss(model, guide, *batch)
    trace = elbo.traces[0]
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
        yield batch
        count += len(batch[0])
        if count >= number:
            return


def _values(guide: nn.Module) -> dict[str, Tensor]:
    """Return copies of a guide's parameters."""
    return {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}


@torch.no_grad()
def _assign(guide: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, parameter in guide.named_parameters():
        parameter.copy_(values[name])


@contextmanager
def _restored(guide: nn.Module) -> Iterator[None]:
    """Context manager in which all parameters of a guide require gradients; restores them on exit."""
    state = [(each, each.requires_grad, each.grad) for each in guide.parameters()]
    values = _values(guide)
    try:
        guide.requires_grad_(True)
        yield
    finally:
        if state:  # an AutoGuide that had not run yet is new
            _assign(guide, values)
        for each, flag, grad in state:
            each.requires_grad_(flag)
            each.grad = grad


def _unknown(guide: nn.Module, site: str) -> str:
    if isinstance(guide, Guide) and site in guide.sites:
        return ""
    kind = type(guide.rest if isinstance(guide, Guide) else guide).__name__
    return f"{kind} has no parameters of single sites, so their movement and gradients are not measured"
