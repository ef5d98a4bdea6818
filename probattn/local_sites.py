"""Local sites: their plate and scale in a mini-batch, and their draw from the posterior that they
carry."""

from collections.abc import Callable
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.infer.reparam.reparam import Reparam, ReparamMessage, ReparamResult
from pyro.poutine.indep_messenger import CondIndepStackFrame, IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.reparam_messenger import ReparamMessenger
from pyro.poutine.runtime import Message
from torch import Tensor
from torch.distributions import kl_divergence

from probattn.draws import Drawn, draw, expanded, num_samples
from probattn.messages import is_set_around
from probattn.pyro_internals import HANDLERS
from probattn.site_info import SiteInfo, factor_info, info_of, mark


class local_sites(Messenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Treat sites with ``infer=local_site()`` as one per example of a minibatch of the data set.

    They get the plate of the examples (dimension −1) and the scale ``num_data / batch``; global
    sites are unchanged.

    Args:
        batch: number of examples in the batch.
        num_data: number of examples in the data set.

    Raises:
        ValueError: a batch without examples.
    """

    def __init__(self, *, batch: int, num_data: int) -> None:
        super().__init__()
        if batch == 0:
            raise ValueError("the batch has no examples")
        self.frame = CondIndepStackFrame("data", dim=-1, size=batch, counter=0, full_size=num_data)
        self.factor = num_data / batch

    def _pyro_sample(self, msg: Message) -> None:
        if "local" in (msg["infer"] or ()):
            raise ValueError(
                f"site {msg['name']}: mark local sites by infer=probattn.local_site(posterior=...)"
            )
        if info_of(msg).local:
            msg["cond_indep_stack"] = (self.frame, *msg["cond_indep_stack"])
            msg["scale"] = msg["scale"] * self.factor


def local_posteriors(model: Callable | None = None) -> Any:
    """Draw local sites that carry their posterior from it, in the model's own pass.

    Each then counts by a factor ``SITE_kl``, −KL(posterior ‖ prior), in closed form where there is
    one. So every ELBO, AutoGuide and ``Predictive`` of Pyro takes ``local_posteriors(model)`` as it
    takes a model without local sites, and needs one pass through the network.
    ``guides.for_model(local_posteriors(model))`` draws no local sites.

    A site that something else gives a value keeps that value and its density: ``condition`` and
    ``do``, inside or around, and a guide that draws the site itself. It is ``poutine.reparam`` with
    one strategy; without a model it is a context manager.

    >>> model = local_posteriors(model)  # doctest: +SKIP
    >>> guide = guides.for_model(model)  # doctest: +SKIP
    >>> svi = SVI(model, guide, Adam({"lr": 1e-3}), TraceMeanField_ELBO())  # doctest: +SKIP

    Args:
        model: a program.
    """
    return LocalPosteriors() if model is None else LocalPosteriors()(model)


class LocalPosteriors(ReparamMessenger):
    """Handler of :func:`local_posteriors`."""

    def __init__(self) -> None:
        super().__init__(self._strategy)

    def _strategy(self, msg: Message) -> Reparam | None:
        info = info_of(msg)
        if info.posterior is None or msg["is_observed"] or msg["value"] is not None:
            return None
        if is_set_around(msg, inside=self):
            return None
        mark(msg, drawn=True)
        return _FromPosterior(info)


class _FromPosterior(Reparam):
    """Strategy of :func:`local_posteriors` for one site.

    Args:
        info: the record of the site.
    """

    def __init__(self, info: SiteInfo) -> None:
        self.info = info

    def apply(self, msg: ReparamMessage) -> ReparamResult:
        name = msg["name"]
        prior = cast(dist.TorchDistribution, msg["fn"])
        value = msg["value"]
        posterior = cast(dist.TorchDistribution, self.info.posterior)
        # Else it is an initial value, of the run in which an AutoGuide lists the model's sites.
        if value is None:
            prior = _in_plates(prior)
            value = draw(posterior, prior.batch_shape)
            # is_prior: the posterior is the prior by design (CGP's output), so that neither density
            # is computed.
            if not self.info.is_prior and poutine.get_mask() is not False:
                unit = dist.Unit(-_kl(posterior, prior, value))
                # Handlers that scale the site, by a weight or num_data / batch, scale its factor as
                # well.
                local = self.info.local
                regulariser = self.info.regulariser
                infer = factor_info(local=local, regulariser=regulariser, kl_of=name)
                pyro.sample(f"{name}_kl", unit, obs=unit.sample(), infer=infer)
        fn = dist.Delta(value, event_dim=prior.event_dim).mask(False)
        return {"fn": fn, "value": value, "is_observed": True}


def _in_plates(prior: dist.TorchDistribution) -> dist.TorchDistribution:
    """Return the prior with the dimensions of draws and of plates around the model, which see the
    site too late."""
    if (number := num_samples()) is not None:
        prior = expanded(prior, -2, number)
    for plate in HANDLERS:
        if isinstance(plate, IndepMessenger) and plate.dim is not None:
            prior = expanded(prior, plate.dim, size_of(plate))
    return prior


def size_of(plate: IndepMessenger) -> int:
    """Return the number of rows that a plate has in this run, which a subsampling plate chooses."""
    return getattr(plate, "subsample_size", plate.size)


def _kl(
    posterior: dist.TorchDistribution,
    prior: dist.TorchDistribution,
    value: Tensor,
) -> Tensor:
    """Return KL(posterior ‖ prior) of each example, or log q − log p at the draw where there is no
    closed form."""
    inner = prior.base_dist if isinstance(prior, Drawn) else prior
    try:
        return kl_divergence(posterior, inner).expand(prior.batch_shape)
    except NotImplementedError:
        return posterior.log_prob(value) - prior.log_prob(value)
