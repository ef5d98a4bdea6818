"""Modules with named sample sites: names, plates, and local sites that carry their posterior."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions import TorchDistribution
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import Message, am_i_wrapped
from torch import Tensor, nn

from probattn.draws import in_batch_shape
from probattn.examples import examples, handlers_of_examples, is_shifted
from probattn.messages import seen_by, values_of
from probattn.param_store import follow_store, register_parameters
from probattn.placement import JointExamples, placement, total
from probattn.pyro_internals import HANDLERS, backward_task, is_svi, without_handlers
from probattn.site_info import factor_info, info_of, mark, site_info


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

    def sites(self) -> dict[str, TorchDistribution]:
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
        with place.scored(), _CheckedReplay(weight):
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


def outside_examples() -> AbstractContextManager[None]:
    """Hide the plate of the examples, and masks and scales of single examples, from the sites
    inside.

    A global site has one value for all examples, and its density counts once. Other plates stay,
    such as Pyro's particles: the site has a value for each of their rows.
    """
    hidden = handlers_of_examples()
    return without_handlers(hidden) if hidden else nullcontext()


def left_of_examples(value: Tensor, event_dim: int) -> Tensor:
    """Return a value ``(*plates, *event)`` with its batch shape right-aligned with batches of
    examples.

    Where samples have dimension −1 of the plates, their dimension moves to the left of the
    examples, ``(S, 1, *event)``.
    """
    if value.dim() > event_dim and is_shifted():
        return value.unsqueeze(-1 - event_dim)
    return value


def aligned_with_plates(value: Tensor, event_dim: int) -> Tensor:
    """Return draws ``(S, *event)`` of ``Predictive(parallel=True)`` as ``(S, 1, *event)``.

    ``Predictive`` omits the dimension of the examples at sites with an event, so that draws would
    be taken for examples.
    """
    batch_shape = value.shape[: value.dim() - event_dim]
    for plate in HANDLERS:
        if isinstance(plate, IndepMessenger) and batch_shape == (plate.size,):
            right = -1 - (plate.dim or 0)  # dimensions between the draws and the event
            if right > 0:
                return value.unflatten(0, (plate.size, *(1,) * right))
    return value


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
        _check_is_meant(name)
    try:
        return pyro.sample(site, distribution, **options)
    except RuntimeError as error:
        if "Multiple" not in str(error):
            raise
        raise ValueError(
            f"two layers have a site {site!r}: give them names, layer.name = ..., or call "
            "name_layers(model) once"
        ) from error


def _check_is_meant(site: str) -> None:
    """Check that no handler gives a value to the site of a layer without a name by the path that it
    would have.

    Raises:
        ValueError: such a value, which would have no effect.
    """
    for handler in HANDLERS:
        given = values_of(handler)
        others = [name for name in given if name.endswith(f".{site}")]
        if others and site not in given:
            raise ValueError(
                f"{others[0]} is given a value, but the layer has no name, and its site is called "
                f"{site}: call name_layers(model) once, which names layers by their paths"
            )


class _CheckedReplay(Messenger):
    """Check how a replayed guide covers a site that carries its posterior; used around that site.

    Args:
        weight: factor of the site's density in its layer, which the guide's density needs as well.

    Raises:
        ValueError: a site missing in the guide, which would be sampled from its prior; a weighted
            site that an AutoGuide samples, whose density belongs to another site.
    """

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_post_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        if msg["is_observed"] or info_of(msg).from_prior:
            return
        handlers = seen_by(msg, inside=self)
        traces = [values_of(each) for each in handlers if isinstance(each, ReplayMessenger)]
        nodes = [trace.nodes[name] for trace in traces if name in trace]
        if traces and not nodes:
            raise ValueError(
                f"the guide draws no site {name}, and its prior is not its posterior, which the "
                "layer has: wrap the model, local_posteriors(model), or use "
                "guides.for_model(model)"
            )
        if isinstance(self.weight, int | float) and self.weight == 1:
            return
        for node in nodes:
            if isinstance(getattr(node["fn"], "base_dist", node["fn"]), dist.Delta):
                raise ValueError(
                    f"the density of {name} has a weight in its layer, which an AutoGuide cannot "
                    "follow: build it on local_posteriors(model)"
                )
            # Else the layer itself drew it in the guide, with its weight.
            if info_of(node).weight is None:
                node["scale"] = node["scale"] * self.weight
                mark(node, weight=self.weight)
