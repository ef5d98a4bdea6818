"""Attention layers of this library inside networks of others."""

from probattn.models.foreign.converted import Converted
from probattn.models.foreign.replace import replace_attention

__all__ = ["Converted", "replace_attention"]
