"""Modules with named sample sites: names, plates, and local sites that carry their posterior."""

from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions import TorchDistribution
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from probattn.draws import in_batch_shape
from probattn.examples import examples
from probattn.messages import CheckedReplay, check_is_meant
from probattn.param_store import follow_store, register_parameters
from probattn.placement import (
    JointExamples,
    aligned_with_plates,
    left_of_examples,
    outside_examples,
    placement,
    total,
)
from probattn.pyro_internals import backward_task, is_svi
from probattn.site_info import factor_info, site_info

Sites = dict[str, TorchDistribution]
"""Global latent sites by name with their priors."""


class SiteModule(nn.Module):
    """Base of modules with sample sites, whose names are ``NAME.SITE``, or ``SITE`` for a module
    without a name.

    ``Supervised`` names the modules of its network by their paths, :func:`name_layers` those of any
    module; a single one is named by ``layer.name = "first"``. The module may run inside or outside
    a plate of the examples (dimension −1, as many rows as the batch). Global sites are outside it:
    their density counts once. Local sites are in it, and where there is none, all examples belong
    to one event.

    Attributes:
        example_dim: dimension of the examples in the first argument of a call; None for modules
            without a batch.
    """

    _name = ""
    registers = True  # in the parameter store under SVI, unless the model around it does that
    example_dim: int | None = None

    @property
    def name(self) -> str:
        """Name of the module, the first part of the names of its sites."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        name_layers(self, name, registers=self.registers)

    def site(self, name: str) -> str:
        """Return the full name of a site."""
        return join(self._name, name)

    def sites(self) -> Sites:
        """Return the global latent sites by name with their current priors, from which guides are
        built without data.

        Priors may sample hyperparameters at sites of their own (see
        :class:`~probattn.priors.Hierarchical`).
        """
        return {}

    def has_local_sites(self) -> bool:
        """Return True if a call samples local sites, whose posterior the module computes."""
        return False

    def sample(self, name: str, prior: TorchDistribution) -> Tensor:
        """Sample a global latent site; its batch shape is right-aligned with the batch (see
        :class:`draws`)."""
        return left_of_examples(self.sample_in_plates(name, prior), prior.event_dim)

    def sample_in_plates(self, name: str, prior: TorchDistribution) -> Tensor:
        """Sample a global latent site; its batch shape is right-aligned with plates, as other
        priors need it."""
        with outside_examples():
            return aligned_with_plates(_sample(self, name, prior), prior.event_dim)

    def sample_local(
        self,
        name: str,
        prior: TorchDistribution,
        posterior: TorchDistribution,
        *,
        weight: float | Tensor = 1.0,
        regulariser: bool = False,
    ) -> Tensor:
        """Sample a local latent site, whose posterior is amortised: it depends on the module's own
        input.

        :func:`~probattn.local_posteriors` draws it from the posterior; without it, it is drawn from
        the prior.

        Args:
            prior, posterior: distributions with batch shape ``(..., batch)``; one object where they
                are the same.
            weight: factor on the log density, a number or one for each example; 0 leaves the
                density out.
            regulariser: the site belongs to the regulariser of correlated GPs.

        Raises:
            ValueError: replayed against a guide that does not cover this site.
        """
        batch_shape = prior.batch_shape
        # Not where they are equal: torch.export would compare a symbolic batch size with 1.
        if len(batch_shape) < len(posterior.batch_shape):
            batch_shape = torch.broadcast_shapes(batch_shape, posterior.batch_shape)
        place = placement(batch_shape, weight)
        law = place.joint(in_batch_shape(prior, batch_shape))
        # Where the posterior is the prior by design, one object tells so, and neither density is
        # computed.
        own = law if posterior is prior else place.joint(in_batch_shape(posterior, batch_shape))
        infer = site_info(
            local=True,
            posterior=own,
            is_prior=posterior is prior,
            weight=weight,
            regulariser=regulariser,
        )
        with place.scored(), CheckedReplay(weight):
            value = _sample(self, name, law, infer=infer)
        return law.separated(value) if isinstance(law, JointExamples) else value

    def observe(
        self,
        name: str,
        distribution: TorchDistribution,
        value: Tensor,
        *,
        weight: float | Tensor = 1.0,
        regulariser: bool = False,
    ) -> None:
        """Add the log density of each example's value to the log joint, as an observed local site.

        Args:
            distribution: of batch shape ``(..., batch)``.
            value: of shape ``(..., batch, *event)``.
            weight, regulariser: as for :meth:`sample_local`.
        """
        if not self.is_scored():
            return
        place = placement(distribution.batch_shape, weight)
        law = place.joint(distribution)
        infer = factor_info(local=True, regulariser=regulariser)
        if isinstance(law, JointExamples):
            value = law.joined(value)
        with place.scored():
            _sample(self, name, law, obs=value, infer=infer)

    def factor(
        self,
        name: str,
        log_factor: Tensor,
        *,
        regulariser: bool = False,
    ) -> None:
        """Add a factor of each example ``(..., batch)`` to the log joint.

        Args:
            log_factor: of each example.
            regulariser: it belongs to the regulariser of correlated GPs.
        """
        if not self.is_scored():
            return
        place = placement(log_factor.shape)
        unit = dist.Unit(total(log_factor, place.layout, place.example_weights))
        infer = factor_info(local=True, regulariser=regulariser)
        with place.scored():
            _sample(self, name, unit, obs=unit.sample(), infer=infer)

    def is_scored(self) -> bool:
        """Return True if a handler may use log densities; ``poutine.mask(mask=False)`` declares
        that none does."""
        return am_i_wrapped() and poutine.get_mask() is not False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; under :class:`pyro.infer.SVI` its parameters are in Pyro's parameter
        store."""
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        if self.registers and is_svi():
            register_parameters(self, self._name)
        elif self.registers:
            follow_store(self, self._name)
        batch = args[0] if args else kwargs.get("x")
        if self.example_dim is None or not isinstance(batch, Tensor):
            return super().__call__(*args, **kwargs)
        dims = batch.dim() + self.example_dim + 1  # 0 or less for an input that the module refuses
        with examples(batch.shape[:dims]) if dims > 0 else nullcontext():
            return super().__call__(*args, **kwargs)


def join(*names: str) -> str:
    """Return names joined by dots, without empty ones."""
    return ".".join(name for name in names if name)


def name_layers(
    module: nn.Module,
    prefix: str = "",
    *,
    registers: bool = True,
) -> None:
    """Name the layers of a module, and all its other modules with sites, by their paths.

    >>> model = nn.ModuleDict({"first": KEPSVGPAttention(16, 2, rank=4)})
    >>> name_layers(model)  # sites "first.u", "first.ksvd"

    Args:
        module: any module; layers with the same weights have one path.
        prefix: put in front of each path.
        registers: False if the caller registers their parameters in Pyro's parameter store.
    """
    for path, submodule in module.named_modules():
        if isinstance(submodule, SiteModule):
            submodule._name = join(prefix, path)
            submodule.registers = registers


def _sample(
    module: SiteModule,
    name: str,
    distribution: TorchDistribution,
    **options: Any,
) -> Tensor:
    site = module.site(name)
    if backward_task() != -1:  # only gradient checkpointing runs a layer then
        raise RuntimeError(
            f"gradient checkpointing would sample site {site!r} again in the backward pass, with "
            "another value: leave the blocks with stochastic layers out of it"
        )
    if site == name:
        check_is_meant(name)
    try:
        return pyro.sample(site, distribution, **options)
    except RuntimeError as error:
        if "Multiple" not in str(error):
            raise
        raise ValueError(
            f"two layers have a site {site!r}: give them names, layer.name = ..., or call "
            "name_layers(model) once"
        ) from error
