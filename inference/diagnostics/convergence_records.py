"""Records of the convergence of a guide, with thresholds and verdicts in words."""

from dataclasses import asdict, dataclass
from typing import Any

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
        return None if self.gain is None else not self.is_gain_above(MATERIAL_GAIN)

    @property
    def state(self) -> str:
        """Key word of the verdict: ``"not converged"``, ``"collapsed"``, ``"alive"`` or ``"unknown"``."""
        word = {True: "alive", False: "not converged", None: "unknown"}[self.is_converged]
        return "collapsed" if self.is_collapsed and self.is_converged is not False else word

    @property
    def verdict(self) -> str:
        """Convergence and collapse in words, with the evidence."""
        if self.gain is None:
            words = "unknown: the guide was not refitted"
        else:
            gain = f"refitting gains {self.gain / self.num_data:.2g} nats per example"
            gain = gain if self.is_gain_above(0.1 * MATERIAL_GAIN) else "refitting gains practically nothing"
            words = f"{'converged' if self.is_converged else 'not converged'}: {gain}"
        if not self.is_collapsed:
            return words
        kl = f"KL {self.kl:.1f} nats for {self.size} variables"
        return f"{words}, and collapsed to the prior: {kl}, standard deviation {self.std_ratio[0]:.2f} of the prior's"

    def is_gain_above(self, nats: float) -> bool:
        """Return True if the gain exceeds its noise and some nats per variable."""
        return not self.gain <= max(nats * self.size, STANDARD_ERRORS * self.gain_error)  # NaN counts, too


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
