"""Likelihoods: modules ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, in float32 or better."""

from probattn.models.likelihoods.classes import Bernoulli, Categorical, Ordinal
from probattn.models.likelihoods.counts import NegativeBinomial, Poisson
from probattn.models.likelihoods.numbers import Gaussian, HeteroscedasticGaussian, StudentT
from probattn.models.likelihoods.tokens import PerToken, TokenCategorical

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
