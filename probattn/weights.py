"""Weights of the terms of the ELBO."""

from pyro.poutine.runtime import Message

from probattn.messages import is_global_latent, is_latent
from probattn.site_info import info_of
from probattn.threads import LockedMessenger


class kl_weight(LockedMessenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Scale the log densities of latent sites (KL weight), around model *and* guide: 1 is the ELBO,
    0 drops the KL.

    Args:
        weight: factor on log p(u) and log q(u) of global sites.
        local: the same for local sites, except those of a regulariser.
    """

    def __init__(self, weight: float, *, local: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.local = local

    def _pyro_sample(self, msg: Message) -> None:
        if is_global_latent(msg):
            msg["scale"] = msg["scale"] * self.weight
            return
        info = info_of(msg)
        is_kl_of_local = is_latent(msg) or info.kl_of is not None
        if is_kl_of_local and not info.regulariser:
            msg["scale"] = msg["scale"] * self.local


class alpha(LockedMessenger):  # noqa: N801
    """Scale the regulariser of correlated GPs (CGP paper, eq. 28).

    Args:
        weight: factor on each layer's α; 0 switches the regulariser off.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_sample(self, msg: Message) -> None:
        if info_of(msg).regulariser:
            msg["scale"] = msg["scale"] * self.weight
