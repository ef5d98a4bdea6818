"""Likelihoods: modules ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, in float32 or better."""

from probattn.models.likelihoods.classification import Bernoulli, Categorical, Ordinal
from probattn.models.likelihoods.counts import NegativeBinomial, Poisson
from probattn.models.likelihoods.per_token import PerToken, TokenCategorical
from probattn.models.likelihoods.regression import Gaussian, HeteroscedasticGaussian, StudentT

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
