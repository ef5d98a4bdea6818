"""Priors over inducing variables: callables ``scale -> Distribution`` whose event has the shape of ``scale``.

A layer scales its prior by its own Λ. Every prior here is centred and has the scale λ > 0 elementwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor

Prior = Callable[[Tensor], dist.TorchDistribution]


def normal(scale: Tensor) -> dist.TorchDistribution:
    """N(0, Λ²) over the last dimension of ``scale`` (KEP-SVGP paper, eq. 16).

    It is a multivariate normal, not ``Normal.to_event``, so that its KL with every Gaussian guide is analytic
    under ``TraceMeanField_ELBO``.
    """
    prior = dist.MultivariateNormal(torch.zeros_like(scale), scale_tril=torch.diag_embed(scale))
    return prior.to_event(scale.dim() - 1)


def laplace(scale: Tensor) -> dist.TorchDistribution:
    """Laplace(0, λ): heavier tails and a sharper peak than the normal; its KL is mostly sampled."""
    return dist.Laplace(torch.zeros_like(scale), scale).to_event(scale.dim())


@dataclass(frozen=True)
class student_t:  # noqa: N801 - a prior like the functions beside it
    """Student-t with ``df`` degrees of freedom and scale λ; its KL is sampled.

    Raises:
        ValueError: where df ≤ 2, since guides start from the prior's standard deviation.
    """

    df: float = 4.0

    def __post_init__(self) -> None:
        if not self.df > 2:
            raise ValueError(f"student_t needs df > 2 for a finite variance, got {self.df}")

    def __call__(self, scale: Tensor) -> dist.TorchDistribution:
        """The prior at a scale."""
        return dist.StudentT(self.df, torch.zeros_like(scale), scale).to_event(scale.dim())


PRIORS: dict[str, Prior] = {"normal": normal, "laplace": laplace, "student_t": student_t()}


def resolve(prior: Prior | str | None) -> Prior:
    """The prior of that name, the callable itself, or the normal prior for None.

    Raises:
        ValueError: an unknown name.
    """
    if prior is None:
        return normal
    if callable(prior):
        return prior
    if prior not in PRIORS:
        raise ValueError(f"unknown prior {prior!r}; known: {', '.join(PRIORS)}, or a callable scale -> Distribution")
    return PRIORS[prior]
