"""Conversion of networks of other libraries: their attention layers replaced by layers of this
library."""

from probattn.models.third_party.converted_network import ConvertedNetwork
from probattn.models.third_party.replace import replace_attention

__all__ = ["ConvertedNetwork", "replace_attention"]
