"""Networks, likelihoods, the Pyro model that joins them, and conversion of networks of other
libraries."""

from probattn.models import likelihoods
from probattn.models.layer_factories import last
from probattn.models.members import Depths, Members, group_heads
from probattn.models.pretrained import PretrainedClassifier
from probattn.models.supervised import Classifier, Supervised
from probattn.models.tabular import TabularTransformer
from probattn.models.text import TextTagger, TextTransformer
from probattn.models.third_party import replace_attention
from probattn.models.vit import ViT

__all__ = [
    "Classifier",
    "Depths",
    "Members",
    "PretrainedClassifier",
    "Supervised",
    "TabularTransformer",
    "TextTagger",
    "TextTransformer",
    "ViT",
    "group_heads",
    "last",
    "likelihoods",
    "replace_attention",
]
