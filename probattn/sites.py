"""Base class of modules with named sample sites, global ones and local ones."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.nn import PyroModule
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from probattn import handlers
from probattn.param_effects import SkipParamEffects
from probattn.pyro_compat import full_name, has_no_effects, module_path


class SiteModule(SkipParamEffects, PyroModule):
    """Base of modules with sample sites, whose names are the module's path and a name.

    The module may run inside or outside a data plate (dimension −1): local sites use that plate or open their own, and
    global sites are outside it, so that their KL counts once.
    """

    def sample(self, name: str, prior: dist.TorchDistribution) -> Tensor:
        """Sample a global latent site; its batch shape is right-aligned with the batch (see :class:`draws`)."""
        stored = self._stored()
        if stored is not None:
            return stored[full_name(self, name)]
        with handlers.outside_data_plate():
            value = pyro.sample(full_name(self, name), prior)
        return handlers.left_of_examples(value, prior.event_dim)

    def sample_local(
        self, name: str, prior: dist.TorchDistribution, posterior: dist.TorchDistribution, **infer: Any
    ) -> Tensor:
        """Sample a local latent site, whose posterior is amortised: it depends on the module's own input.

        The library's ELBOs, guides and ``predict`` sample it from the posterior; without a guide it is sampled from the
        prior, like every site.

        Args:
            prior, posterior: distributions with batch shape ``(..., batch)``.
            infer: further entries of the site's ``infer``.

        Raises:
            ValueError: under a guide that does not cover this site, replayed by Pyro's own ELBOs.
        """
        stored = self._stored()
        if stored is not None:
            stored.drawn = True
            same = posterior.batch_shape == prior.batch_shape
            posterior = posterior if same else posterior.expand(prior.batch_shape)
            return handlers.draw_local(posterior, number=stored.num_samples)
        infer |= {"local": True, "posterior": posterior}
        with self._data_plate(prior), handlers.checked_guide(infer.get("weight")):
            return pyro.sample(full_name(self, name), prior, infer=infer)

    def observe(self, name: str, distribution: dist.TorchDistribution, value: Tensor, **infer: Any) -> None:
        """Add the log density of each example's value to the log joint, as an observed local site."""
        if self._stored() is not None:
            return
        infer = {"is_auxiliary": True, "local": True, **infer}
        with self._data_plate(distribution):
            pyro.sample(full_name(self, name), distribution, obs=value, infer=infer)

    def penalty(self, name: str, per_example: Callable[[], Tensor]) -> None:
        """Add −penalty to the log joint as a named local factor site.

        Args:
            per_example: returns the penalty of each example ``(..., batch)``, computed in float32 or better; called
                only if :meth:`is_scored`.
        """
        if self.is_scored():
            self._add_factor(name, -per_example())

    def _add_factor(self, name: str, log_factor: Tensor) -> None:
        unit = dist.Unit(log_factor)
        self.observe(name, unit, unit.sample())

    def is_scored(self) -> bool:
        """Return True if a handler may use log densities; ``poutine.mask(mask=False)`` declares that none does."""
        return handlers.stored_sites() is None and am_i_wrapped() and poutine.get_mask() is not False

    def _stored(self) -> handlers.StoredSites | None:
        stored = handlers.stored_sites()
        if stored is None and has_no_effects(self):
            raise RuntimeError(
                f"site module {module_path(self)!r} belongs to a network with stored samples and runs outside its "
                "forward method, where it has no values: call the network, without gradient checkpointing"
            )
        return stored

    def _data_plate(self, distribution: dist.TorchDistribution) -> AbstractContextManager:
        if not am_i_wrapped() or handlers.has_data_plate():
            return nullcontext()
        return handlers.data_plate(full_name(self, "examples"), distribution.batch_shape[-1])


def sample_labels(likelihood: dist.TorchDistribution, labels: Tensor | None = None) -> Any:
    """Sample the labels at site ``y``, or observe them; under stored sites, record and return their likelihood."""
    stored = handlers.stored_sites()
    if stored is not None:
        stored.likelihood = likelihood
        return likelihood
    return pyro.sample("y", likelihood, obs=labels, infer={"local": True, "label": True})
