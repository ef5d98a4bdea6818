"""Networks, likelihoods, the Pyro model that joins them, and conversion of networks of other
libraries."""

import lazy_loader

# The names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
