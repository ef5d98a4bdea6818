"""Likelihoods: modules ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, in float32 or better."""

from probattn.models.likelihoods.classification import Bernoulli, Categorical, Ordinal
from probattn.models.likelihoods.per_token import PerToken, TokenCategorical
from probattn.models.likelihoods.regression import (
    Gaussian,
    HeteroscedasticGaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "NegativeBinomial",
    "Ordinal",
    "PerToken",
    "Poisson",
    "StudentT",
    "TokenCategorical",
]
