"""Records of the convergence of a guide, with thresholds and verdicts in words."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from probattn.inference.diagnostics.guide_gradients import GradientBalance
from probattn.inference.diagnostics.predictive_spread import PredictiveSpread

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
