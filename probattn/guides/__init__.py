"""Guides (variational distributions) of the latent sites of a model, built without data."""

from probattn.guides.autoguides import check, check_local, is_lazy, lacks_prototype, materialise
from probattn.guides.guide import Guide, for_model, latent_sites, priors_of

__all__ = [
    "Guide",
    "check",
    "check_local",
    "for_model",
    "is_lazy",
    "lacks_prototype",
    "latent_sites",
    "materialise",
    "priors_of",
]
