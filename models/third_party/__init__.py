"""Attention layers of this library inside networks of others."""

from probattn.models.third_party.converted import Converted
from probattn.models.third_party.replace import replace_attention

__all__ = ["Converted", "replace_attention"]
