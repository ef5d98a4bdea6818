"""Guides (variational distributions) of the latent sites of a model, built without data."""

from probattn.guides.checks import check, check_global, global_part
from probattn.guides.guide import Guide, for_model
from probattn.guides.layer_sites import latent_sites, priors_of
from probattn.guides.lazy import is_lazy, lacks_prototype, materialise

__all__ = [
    "Guide",
    "check",
    "check_global",
    "for_model",
    "global_part",
    "is_lazy",
    "lacks_prototype",
    "latent_sites",
    "materialise",
    "priors_of",
]
