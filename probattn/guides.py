"""Guides (variational distributions) of the global latent sites of a model's layers, built without
data."""

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import pyro.poutine as poutine
from pyro.nn import pyro_method
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from probattn.draws import in_batch_shape
from probattn.families import Family, on_support, resolve
from probattn.messages import is_latent, law_of, value_of
from probattn.param_store import StoredModule
from probattn.programs import (
    Program,
    latent_sites,
    leaves_local_sites,
    module_of,
    sample_priors,
    values_by_name,
)
from probattn.site_info import info_of
from probattn.threads import one_thread_at_a_time

__all__ = [
    "Guide",
    "Program",
    "for_model",
    "global_sites",
    "latent_sites",
    "module_of",
    "sample_priors",
]


class Guide(StoredModule):
    """Mean-field guide over global sites: each has a module of its family, at the site's path
    inside the guide.

    Built by :func:`for_model`. It samples the priors' program with q in place of each prior, so q
    follows the prior's present scale, and hyperparameters are drawn from q before what depends on
    them. It holds the model without registering it.

    Local sites have the posterior that their layer computes. Where the model has such sites, the
    guide runs the model once to draw them, so every tool of Pyro takes model and guide as they are.
    A guide of ``local_posteriors(model)`` leaves them to the model's own pass.

    Attributes:
        sites: names of the sites that have a module here.
        draws_local_sites: True if the model has local sites and leaves them to its guide.
        rest: the guide of all other global sites, or None.
    """

    def __init__(
        self,
        model: Program,
        families: Mapping[str, Family],
        *,
        rest: Callable | None = None,
    ) -> None:
        super().__init__()
        self._model = (model,)
        self.sites: tuple[str, ...] = ()
        # As in the model, whose order the mean-field ELBO checks
        self._rest_first: bool | None = None
        with _AtMedian():
            priors = dict(latent_sites(model))
        for site, family in families.items():
            self.cover(site, on_support(family, priors[site]))
        self.draws_local_sites = leaves_local_sites(model)
        self.rest = None if rest is None else rest(poutine.block(model, hide_fn=self._covers))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site; the arguments are the model's, which local sites and ``rest`` may
        depend on."""
        if not self.draws_local_sites:
            return self.sample_global(*args, **kwargs)
        with poutine.trace() as run:
            self._sample_rest(*args, **kwargs)
            given = values_by_name(run.trace)
            exposed = poutine.block(expose_fn=lambda msg: self._draws(msg, given))
            with exposed, _FromGuide(self, given, hides=False):
                self._model[0](*args, **kwargs)
        return {name: value_of(node) for name, node in run.trace.nodes.items() if is_latent(node)}

    @pyro_method
    def sample_global(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample the global sites alone, without a run of the model; arguments as for
        :meth:`forward`."""
        if self.rest is not None and self._rest_first is None:
            # An AutoGuide runs the model once, which shows the order of its sites.
            with poutine.block():
                self.rest(*args, **kwargs)
            self._rest_first = self._rest_first is not False
        # Priors may depend on sites that come before them.
        before = self._sample_rest(*args, **kwargs) if self._rest_first else {}
        with _FromGuide(self, before, hides=True):
            values = sample_priors(module_of(self._model[0]))
        after = {} if self._rest_first else self._sample_rest(*args, **kwargs)
        return {site: values[site] for site in self.sites} | before | after

    def _draws(self, msg: Message, given: Mapping[str, Tensor]) -> bool:
        """Return True for the sites of a run of the model that belong to the guide: latent ones,
        and rows of plates."""
        name = str(msg["name"])
        if msg["type"] != "sample" or name in given:
            return False
        if site_is_subsample(msg):
            return True
        return is_latent(msg) and (name in self.sites or info_of(msg).posterior is not None)

    def _sample_rest(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {} if self.rest is None else self.rest(*args, **kwargs) or {}

    def cover(self, site: str, posterior: nn.Module) -> None:
        """Cover one more site of the model by a module ``prior -> distribution``, such as one of a
        known posterior."""
        self.sites = (*self.sites, site)
        *containers, name = site.split(".")
        parent: nn.Module = self
        for container in containers:
            if container not in dict(parent.named_children()):
                parent.add_module(container, nn.Module())
            parent = parent.get_submodule(container)
        parent.add_module(name, posterior)

    def _covers(self, msg: Message) -> bool:
        is_covered = msg["name"] in self.sites or info_of(msg).posterior is not None
        if self._rest_first is None and is_latent(msg):
            self._rest_first = not is_covered
        return is_covered


@one_thread_at_a_time
def for_model(
    model: Program,
    family: str | Family = "full",
    *,
    overrides: Mapping[str, str | Family] | None = None,
    rest: Callable[[Program], Program] | None = None,
) -> Guide:
    """Build a guide for every global latent site of a model's attention layers, hyperparameters
    included.

    >>> guide = guides.for_model(model, "full", rest=AutoNormal)  # doctest: +SKIP

    Args:
        model: a module that holds layers of this library (or is one), or such a module under
            handlers; sites that these observe or hide (``pyro.condition``, ``poutine.block``) are
            left out.
        family: ``"full"``, ``"diagonal"``, ``"lowrank"``, ``"delta"`` or a callable
            ``prior -> module``. The named families accept sites of any continuous support, by a
            bijection from ℝ.
        overrides: families by pattern of site names (``"*.6.*"``); the last match counts.
        rest: builds a guide of the remaining global sites (Bayesian weights, your own sites), such
            as a class of Pyro's AutoGuides; it is called with the model in which the covered sites
            are hidden.

    Raises:
        ValueError: an unknown family, a family chosen for a model without a site for it, a pattern
            that matches no site, or two layers of one name.
        TypeError: a function, whose layers cannot be found: give the layers, in an
            ``nn.ModuleList``, say.
    """
    sites = [site for site, _ in latent_sites(model)]
    if not sites and family != "full":
        raise ValueError(
            f"no site for a guide of family {family!r}: all latent sites of this model are local "
            "and carry their own posterior (or there are none)"
        )
    chosen = dict.fromkeys(sites, resolve(family))
    for pattern, override in (overrides or {}).items():
        matching = fnmatch.filter(sites, pattern)
        if not matching:
            raise ValueError(
                f"override {pattern!r} matches no latent site; sites: {', '.join(sites) or 'none'}"
            )
        chosen |= dict.fromkeys(matching, resolve(override))
    return Guide(model, chosen, rest=rest)


class _FromGuide(Messenger):
    """Handler that puts q in the place of the prior at each site of a guide.

    Args:
        guide: the guide.
        given: values of other sites by name.
        hides: hide all sites that are not the guide's; else put local sites at the posterior that
            they carry.
    """

    def __init__(
        self,
        guide: Guide,
        given: Mapping[str, Tensor],
        *,
        hides: bool,
    ) -> None:
        super().__init__()
        self.guide = guide
        self.given = given
        self.hides = hides

    def _pyro_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        posterior = info_of(msg).posterior
        if name in self.guide.sites:
            msg["fn"] = self.guide.get_submodule(name)(msg["fn"])
        elif self.hides:
            msg["value"] = self.given.get(name)
            msg["stop"] = True
        elif name in self.given:
            msg["value"] = self.given[name]
            msg["done"] = True
        elif posterior is not None and msg["value"] is None:
            msg["fn"] = in_batch_shape(posterior, law_of(msg).batch_shape)


def global_sites(guide: Callable[..., Any]) -> Callable[..., Any]:
    """Return the program of a guide's global sites, for what draws local sites in the model's own
    pass.

    A guide messenger of Pyro runs the model inside; what the model observes, and its labels, are
    left out.
    """
    if isinstance(guide, Guide) and guide.draws_local_sites:
        return guide.sample_global
    if isinstance(guide, GuideMessenger):
        return poutine.block(guide, hide_fn=_is_of_model)
    return guide


def _is_of_model(msg: Message) -> bool:
    return msg["type"] == "sample" and (
        msg["is_observed"] or info_of(msg).label or msg["name"] == "y"
    )


class _AtMedian(Messenger):
    """Handler that sets hyperparameters to the median of their priors, at which guides are
    initialised."""

    def _pyro_sample(self, msg: Message) -> None:
        if is_latent(msg):
            msg["value"] = law_of(msg).sample((1001,)).median(0).values
            msg["done"] = True
