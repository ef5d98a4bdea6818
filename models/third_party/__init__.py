"""Conversion of networks of other libraries: their attention layers replaced by layers of this
library."""
