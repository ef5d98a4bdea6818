"""Modules with named sample sites: names, plates, and local sites that carry their posterior."""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import Message, am_i_wrapped
from pyro.poutine.scale_messenger import ScaleMessenger
from torch import Tensor, nn

from probattn.draws import mark_drawn, num_samples
from probattn.local_sites import local_sites
from probattn.messages import infer_dict, infer_of
from probattn.param_store import register_parameters
from probattn.pyro_internals import HANDLERS, backward_task, is_svi, without_handlers


class SiteModule(nn.Module):
    """Base of modules with sample sites, whose names are ``NAME.SITE``, or ``SITE`` for a module without a name.

    ``Supervised`` names the modules of its network by their paths, :func:`name_layers` those of any module; a single
    one is named by ``layer.name = "first"``. The module may run inside or outside a plate of the examples (dimension
    −1): local sites use that plate or open their own, and global sites are outside it: their density counts once.
    """

    _name = ""
    registers = True  # in the parameter store under SVI, unless the model around it does that

    @property
    def name(self) -> str:
        """Name of the module, the first part of the names of its sites."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        name_layers(self, name, registers=self.registers)

    def site(self, name: str) -> str:
        """Return the full name of a site."""
        return f"{self._name}.{name}" if self._name else name

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the global latent sites by name with their current priors, from which guides are built without data.

        Priors may sample hyperparameters at sites of their own (see :class:`~probattn.priors.Hierarchical`).
        """
        return {}

    def sample(self, name: str, prior: dist.TorchDistribution) -> Tensor:
        """Sample a global latent site; its batch shape is right-aligned with the batch (see :class:`draws`)."""
        mark_drawn()
        with outside_examples():
            return left_of_examples(_sample(self.site(name), prior), prior.event_dim)

    def sample_local(
        self, name: str, prior: dist.TorchDistribution, posterior: dist.TorchDistribution, **infer: Any
    ) -> Tensor:
        """Sample a local latent site, whose posterior is amortised: it depends on the module's own input.

        :func:`~probattn.local_posteriors` draws it from the posterior; without it, it is drawn from the prior.

        Args:
            prior, posterior: distributions with batch shape ``(..., batch)``; one object where they are the same.
            infer: further entries of the site's ``infer``.

        Raises:
            ValueError: replayed against a guide that does not cover this site.
        """
        mark_drawn()
        site, law = self.site(name), prior
        if len(prior.batch_shape) < len(posterior.batch_shape):
            law = prior.expand(torch.broadcast_shapes(prior.batch_shape, posterior.batch_shape))
        # Where the posterior is the prior by design, neither density is computed.
        carried = {"posterior": posterior, "is_prior": posterior is prior}
        with example_plates(site, law.batch_shape), _CheckedReplay(infer.get("weight", 1)):
            return _sample(site, law, infer={"local": True, **carried, **infer})

    def observe(self, name: str, distribution: dist.TorchDistribution, value: Tensor, **infer: Any) -> None:
        """Add the log density of each example's value to the log joint, as an observed local site."""
        if self.is_scored():
            site = self.site(name)
            with example_plates(site, distribution.batch_shape):
                _sample(site, distribution, obs=value, infer={"is_auxiliary": True, "local": True, **infer})

    def factor(self, name: str, log_factor: Tensor, **infer: Any) -> None:
        """Add a factor of each example ``(..., batch)`` to the log joint."""
        unit = dist.Unit(log_factor)
        self.observe(name, unit, unit.sample(), **infer)

    def is_scored(self) -> bool:
        """Return True if a handler may use log densities; ``poutine.mask(mask=False)`` declares that none does."""
        return am_i_wrapped() and poutine.get_mask() is not False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; under :class:`pyro.infer.SVI` its parameters are in Pyro's parameter store."""
        if self.registers and is_svi():
            register_parameters(self, self._name)
        return super().__call__(*args, **kwargs)


def join(*names: str) -> str:
    """Return names joined by dots, without empty ones."""
    return ".".join(name for name in names if name)


def name_layers(module: nn.Module, prefix: str = "", *, registers: bool = True) -> None:
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
            submodule._name, submodule.registers = join(prefix, path), registers


def outside_examples() -> AbstractContextManager[None]:
    """Hide plates of examples, and masks and scales of single examples, from the sites inside.

    A global site has one value for all examples, and its density counts once.
    """
    in_plate = False
    hidden: list[Messenger] = []
    for handler in HANDLERS:
        if isinstance(handler, IndepMessenger) and handler.dim == -1:
            in_plate = True
            hidden.append(handler)
        elif isinstance(handler, MaskMessenger | ScaleMessenger):
            weight = handler.mask if isinstance(handler, MaskMessenger) else handler.scale
            if isinstance(weight, Tensor) and weight.dim() and (in_plate or weight.shape[-1] > 1):
                hidden.append(handler)
    return without_handlers(hidden) if hidden else nullcontext()


def left_of_examples(value: Tensor, event_dim: int) -> Tensor:
    """Return draws ``(S, *event)`` of ``Predictive(parallel=True)`` as ``(S, 1, *event)``.

    ``Predictive`` omits the dimension of the examples at sites with an event, so that draws would be taken for
    examples.
    """
    batch_shape = value.shape[: value.dim() - event_dim]
    for plate in HANDLERS:
        dim = plate.dim if isinstance(plate, IndepMessenger) and batch_shape == (plate.size,) else None
        if dim is not None and dim < -1:
            return value.unflatten(0, (*batch_shape, *(1,) * (-1 - dim)))
    return value


def example_plates(site: str, batch_shape: torch.Size) -> AbstractContextManager:
    """Open a plate for each dimension of a batch that has none: examples, groups of them, but not draws."""
    if not am_i_wrapped():
        return nullcontext()
    taken: set[int | None] = {-2} if num_samples() is not None else set()
    for handler in HANDLERS:
        if isinstance(handler, IndepMessenger | local_sites):
            taken.add(handler.frame.dim if isinstance(handler, local_sites) else handler.dim)
    plates = ExitStack()
    for dim in range(-len(batch_shape), 0):
        if dim not in taken and (dim == -1 or batch_shape[dim] > 1):
            name = "examples" if dim == -1 else f"examples_{-dim}"
            plates.enter_context(IndepMessenger(f"{site}_{name}", batch_shape[dim], dim=dim))
    return plates


def _sample(site: str, distribution: dist.TorchDistribution, **options: Any) -> Tensor:
    if backward_task() != -1:  # only gradient checkpointing runs a layer then
        raise RuntimeError(
            f"gradient checkpointing would sample site {site!r} again in the backward pass, with another value: "
            "leave the blocks with stochastic layers out of it"
        )
    try:
        return pyro.sample(site, distribution, **options)
    except RuntimeError as error:
        if "Multiple" not in str(error):
            raise
        raise ValueError(
            f"two layers have a site {site!r}: give them names, layer.name = ..., or call name_layers(model) once"
        ) from error


class _CheckedReplay(Messenger):
    """Check how a replayed guide covers a site that carries its posterior; used around that site.

    Args:
        weight: factor of the site's density in its layer, which the guide's density needs as well.

    Raises:
        ValueError: a site missing in the guide, which would be sampled from its prior; a weighted site that an
            AutoGuide samples, whose density belongs to another site.
    """

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_post_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        replays = [handler.trace for handler in HANDLERS if isinstance(handler, ReplayMessenger)]
        if not replays or msg["is_observed"] or msg["stop"] or infer_of(msg).get("from_prior"):
            return
        nodes = [trace.nodes[name] for trace in replays if trace is not None and name in trace]
        if not nodes:
            raise ValueError(
                f"the guide draws no site {name}, and its prior is not its posterior, which the layer has: "
                "wrap the model, local_posteriors(model)"
            )
        is_one = isinstance(self.weight, int | float) and self.weight == 1
        for node in () if is_one else nodes:
            if isinstance(getattr(node["fn"], "base_dist", node["fn"]), dist.Delta):
                raise ValueError(
                    f"the density of {name} has a weight in its layer, which an AutoGuide cannot follow: build "
                    "it on local_posteriors(model)"
                )
            if "weight" not in infer_of(node):
                node["scale"] = node["scale"] * self.weight
                node["infer"] = infer_dict(**infer_of(node), weight=self.weight)
