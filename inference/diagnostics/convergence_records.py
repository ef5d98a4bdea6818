"""Records of the convergence of a guide, with thresholds and verdicts in words."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

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
SYMBOLS = {"loc": "m", "whitened": "m", "raw_tril": "S", "raw_scale": "S", "factor": "the factor of S"}
"""Symbols of the parameters of this library's guide families."""


@dataclass(frozen=True, kw_only=True)
class ParameterConvergence:
    """Movement of one parameter of a guide, and the gradients of KL and likelihood on it; None where unknown.

    Args:
        name: name in the guide, such as ``loc`` (m) or ``raw_tril`` (the Cholesky factor of S before its softplus, of
            which the diagonal counts).
        largest_shift: largest |θ − θ₀| of its scalars relative to the sum of the guide's learning rates, Adam's reach.
        ratio: ‖g_KL‖ / ‖g_nll‖, 1 at an optimum.
        cosine: of the angle between the two gradients, −1 at an optimum.
        residual: ‖g_KL + g_nll‖ / (‖g_KL‖ + ‖g_nll‖), in [0, 1], 0 at an optimum.
        noise: residual that the noise of g_nll alone would give: ‖standard error‖ / (‖g_KL‖ + ‖g_nll‖).
    """

    name: str
    largest_shift: float | None = None
    ratio: float | None = None
    cosine: float | None = None
    residual: float | None = None
    noise: float | None = None

    @property
    def symbol(self) -> str:
        """Its symbol in the text."""
        return SYMBOLS.get(self.name.rpartition(".")[2], self.name)

    @property
    def is_on_speed_limit(self) -> bool:
        """True if a scalar moved as far as the learning rates allowed (see :data:`SPEED_LIMIT`)."""
        return (self.largest_shift or 0.0) >= SPEED_LIMIT

    @property
    def is_out_of_balance(self) -> bool:
        """True if the gradients do not cancel (see :data:`IMBALANCE`), beyond their noise."""
        return self.residual is not None and self.residual > max(IMBALANCE, STANDARD_ERRORS * self.noise)


@dataclass(frozen=True, kw_only=True)
class SiteConvergence:
    """Convergence of the guide at one global latent site.

    Args:
        site: its name.
        size: number of scalar variables.
        num_data: number of training examples.
        kl: KL(q ‖ prior) in nats; of Gaussians with the moments of draws for other guides than this library's.
        std_ratio: mean, smallest and largest ratio of posterior to prior standard deviation over its variables.
        parameters: the guide's parameters at this site; unknown, () for other guides than this library's.
        gain: increase of the ELBO by refitting the guide at this site alone, in nats of the whole data set; None if it
            was not refitted. Of guides other than this library's, all sites are refitted.
        gain_error: its standard error.
    """

    site: str
    size: int
    num_data: int
    kl: float
    std_ratio: tuple[float, float, float]
    parameters: tuple[ParameterConvergence, ...] = ()
    gain: float | None = None
    gain_error: float = 0.0

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
        limited = any(parameter.is_on_speed_limit for parameter in self.parameters)
        unbalanced = any(parameter.is_out_of_balance for parameter in self.parameters)
        if self.gain is not None:
            return not (self.is_gain_above(MATERIAL_GAIN) or (limited and unbalanced))
        if limited or unbalanced:
            return False
        return True if any(parameter.residual is not None for parameter in self.parameters) else None

    @property
    def state(self) -> str:
        """Key word of the verdict: ``"not converged"``, ``"collapsed"``, ``"alive"`` or ``"unknown"``."""
        word = {True: "alive", False: "not converged", None: "unknown"}[self.is_converged]
        return "collapsed" if self.is_collapsed and self.is_converged is not False else word

    @property
    def verdict(self) -> str:
        """Convergence and collapse in words, with the evidence."""
        evidence = [*self._signs()] if self.is_converged is False else []
        if self.gain is not None and (self.is_converged or self.is_gain_above(MATERIAL_GAIN)):
            gain = f"refitting gains {self.gain / self.num_data:.2g} nats per example"
            evidence.append(gain if self.is_gain_above(0.1 * MATERIAL_GAIN) else "refitting gains practically nothing")
        if self.is_converged is None:
            evidence.append("neither its gradients nor a refit were measured")
        word = {True: "converged", False: "not converged", None: "unknown"}[self.is_converged]
        words = ": ".join([word, "; ".join(evidence)] if evidence else [word])
        if not self.is_collapsed:
            return words
        kl = f"KL {self.kl:.1f} nats for {self.size} variables"
        return f"{words}, and collapsed to the prior: {kl}, standard deviation {self.std_ratio[0]:.2f} of the prior's"

    def is_gain_above(self, nats: float) -> bool:
        """Return True if the gain exceeds its noise and some nats per variable."""
        return not self.gain <= max(nats * self.size, STANDARD_ERRORS * self.gain_error)  # NaN counts, too

    def _signs(self) -> Iterator[str]:
        for parameter in self.parameters:
            if parameter.is_on_speed_limit:
                yield f"{parameter.symbol} moved {parameter.largest_shift:.2f} of what the optimiser allowed"
            if parameter.is_out_of_balance:
                larger, smaller = ("KL", "likelihood") if parameter.ratio >= 1 else ("likelihood", "KL")
                times = max(parameter.ratio, 1 / parameter.ratio) if parameter.ratio else math.inf
                opposed = "" if times >= 1.5 else ", and they do not oppose each other"
                yield f"the {larger}'s gradient on {parameter.symbol} is {times:.1f} times the {smaller}'s{opposed}"


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
        predictive: spread of the predictions on validation data; None without them, or without classes.
    """

    sites: tuple[SiteConvergence, ...]
    predictive: PredictiveSpread | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers and verdicts as a dict of JSON's types."""
        sites = [asdict(site) | {"verdict": site.verdict, "state": site.state} for site in self.sites]
        return asdict(self) | {"sites": sites}

    def __str__(self) -> str:
        return "\n".join(f"{site.site}: {site.verdict}" for site in self.sites)
