"""Whole networks, likelihoods, and the model that joins them."""

from probattn.models.likelihoods import Bernoulli, Categorical, Normal, TokenCategorical
from probattn.models.supervised import Classifier, Supervised
from probattn.models.vit import ViT, last

__all__ = ["Bernoulli", "Categorical", "Classifier", "Normal", "Supervised", "TokenCategorical", "ViT", "last"]
