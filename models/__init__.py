"""Whole networks, likelihoods, the model that joins them, and probabilistic attention for networks of others."""

from probattn.models import likelihoods
from probattn.models.blocks import last
from probattn.models.likelihoods import Bernoulli, Categorical, TokenCategorical
from probattn.models.supervised import Classifier, Supervised
from probattn.models.text import TextTagger, TextTransformer
from probattn.models.third_party import replace_attention
from probattn.models.vit import ViT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Classifier",
    "Supervised",
    "TextTagger",
    "TextTransformer",
    "TokenCategorical",
    "ViT",
    "last",
    "likelihoods",
    "replace_attention",
]
