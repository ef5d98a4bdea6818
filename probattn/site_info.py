"""Record of a site for the handlers of this library, beside Pyro's own
options.

Pyro's options stay what they are: ``is_auxiliary`` marks factors, ``enumerate`` discrete sites that
are summed out.

==================  =============================  ================================
field               written by                     read by
==================  =============================  ================================
``local``           layers, ``Supervised``, users  draws, weights, local_sites
``label``           ``Supervised``, ``predict``    draws, coverage, predict
``posterior``       layers, users                  local_posteriors, guides, psis
``is_prior``        layers                         local_posteriors
``weight``          layers                         the check of replayed guides
``regulariser``     layers of correlated GPs       weights
``kl_of``           local_posteriors               weights, terms of the ELBO
``from_prior``      ``predict`` without a guide, psisthe check of replayed guides
``drawn``           local_posteriors               terms of the ELBO
==================  =============================  ================================
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import pyro.distributions as dist
from pyro.poutine.runtime import InferDict, Message
from torch import Tensor

KEY = "probattn"


@dataclass(frozen=True, eq=False)
class SiteInfo:
    """Record of a site.

    Args:
        local: the site has one value for each example.
        label: it is the label, latent only where it is to be predicted.
        posterior: its posterior, which its layer computes; None without one.
        is_prior: that posterior is the prior by design, so that neither density is computed.
        weight: factor on its log density in its layer, a number or one for each example; None
            outside layers.
        regulariser: it belongs to the regulariser of correlated GPs.
        kl_of: name of the local site whose −KL this factor is.
        from_prior: draw it from its prior, whatever its posterior is.
        drawn: :func:`~probattn.local_posteriors` has drawn it, and added its KL.
    """

    local: bool = False
    label: bool = False
    posterior: dist.TorchDistribution | None = None
    is_prior: bool = False
    weight: float | Tensor | None = None
    regulariser: bool = False
    kl_of: str | None = None
    from_prior: bool = False
    drawn: bool = False


_NOTHING = SiteInfo()


def site_info(**fields: Any) -> InferDict:
    """Return the options of a site with a record,
    ``pyro.sample(..., infer=site_info(local=True))``.

    Args:
        fields: as for :class:`SiteInfo`.
    """
    return cast(InferDict, {KEY: SiteInfo(**fields)})


def factor_info(**fields: Any) -> InferDict:
    """Return the options of a factor, or an observed site, that belongs to what a layer computes;
    fields as for :class:`SiteInfo`."""
    return site_info(**fields) | {"is_auxiliary": True}


def local_site(posterior: dist.TorchDistribution | None = None) -> InferDict:
    """Return the options of a local site: one value for each example of the batch.

    >>> z = pyro.sample("z", prior, infer=local_site(posterior=q))  # doctest: +SKIP

    Args:
        posterior: q of the site, from which :func:`~probattn.local_posteriors` and guides draw it.
    """
    return site_info(local=True, posterior=posterior)


def info_of(msg: Message) -> SiteInfo:
    """Return the record of a message or of a node of a trace, the empty one for sites without
    it."""
    infer: Any = msg["infer"]
    return infer.get(KEY, _NOTHING) if infer else _NOTHING


def mark(msg: Message, **fields: Any) -> None:
    """Change fields of the record of a message or node."""
    infer: Any = msg["infer"] or {}
    msg["infer"] = infer | {KEY: replace(info_of(msg), **fields)}
