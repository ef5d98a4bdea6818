"""Stored values of latent sites, with which a model runs without Pyro, in any number of threads at once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyro.distributions as dist
from torch import Tensor

from probattn.thread_values import ThreadValue

_STORED: ThreadValue["StoredSites | None"] = ThreadValue(None)


class StoredSites:
    """Values of the global latent sites of a model, and the likelihood of the labels that it computes from them.

    Args:
        values: by name of the site, with the batch shape of ``draws(S)``; that of the prior for ``num_samples=None``.
        num_samples: S; None puts local sites at the means of their posteriors.

    Attributes:
        likelihood: the distribution of the labels; None before the model has run.
        drawn: True once the samples have a dimension of their own, which a site or :class:`draws_in_batch` added.
    """

    def __init__(self, values: Mapping[str, Tensor], *, num_samples: int | None) -> None:
        self.values, self.num_samples = values, num_samples
        self.likelihood: dist.TorchDistribution | None = None
        self.drawn = False

    def __getitem__(self, name: str) -> Tensor:
        """Return the value of a site.

        Raises:
            ValueError: no value is stored for it.
        """
        if name not in self.values:
            raise ValueError(
                f"site {name} is neither a global site of the guide nor a local site whose layer defines its posterior "
                "(sample_local): a network without the guide has no value for it"
            )
        self.drawn = True
        return self.values[name]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use these values for the sites of modules that run inside, in this thread."""
        with _STORED.replaced(self):
            yield


def stored_sites() -> StoredSites | None:
    """Return the stored sites that this thread uses now, or None."""
    return _STORED.value
