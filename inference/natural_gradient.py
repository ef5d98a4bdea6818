"""Natural-gradient descent of the Gaussian modules of a guide."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from probattn.families import Delta, Diagonal, Full, LowRank


class NaturalGradientDescent(torch.optim.Optimizer):
    """Natural-gradient steps of a guide's Gaussian modules on their ELBO (Salimbeni et al., 2018).

    It has no state. Each step has the length ``lr · scale``, the natural gradient being that of the loss.

    Args:
        modules: Gaussian modules of a guide (see :func:`gaussian_modules`).
        lr: 1 is a full step.
        scale: N / kl_weight for a loss of −ELBO/N, so that ``lr`` 1 is a full step on the tempered objective: with
            weight w of the KL this is w · (KL + data term / w).
    """

    def __init__(self, modules: Sequence[Full | Diagonal], *, lr: float = 1.0, scale: float) -> None:
        self.modules, self.scale = modules, scale
        groups = [{"params": list(module.parameters())} for module in self.modules]
        super().__init__(groups, {"lr": lr})

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that it updates."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Update mean and covariance of each module whose parameters have gradients."""
        for module, group in zip(self.modules, self.param_groups, strict=True):
            if all(parameter.grad is not None for parameter in group["params"]):
                module.natural_step(group["lr"] * self.scale)


def gaussian_modules(guide: nn.Module) -> list[Full | Diagonal]:
    """Return a guide's modules of the families ``full`` and ``diagonal``."""
    return [part for part in guide.modules() if isinstance(part, Full | Diagonal)]


def check_gaussian(guide: nn.Module) -> None:
    """Check that natural gradients train a guide.

    Raises:
        ValueError: a module of another family of this library, or a guide with parameters and no Gaussian module.
    """
    for name, part in guide.named_modules():
        if isinstance(part, LowRank | Delta):
            raise ValueError(
                "guide_optimizer='ngd' takes natural-gradient steps of Gaussians in natural parameters, and the guide "
                f"of site {name.removesuffix('.unconstrained')} is {type(part).__name__}: build the guide with family "
                "'full' or 'diagonal' (layer.guide=full), or set guide_optimizer='adam'"
            )
    if not gaussian_modules(guide) and any(True for _ in guide.parameters()):
        raise ValueError(
            "guide_optimizer='ngd' takes natural-gradient steps of the families 'full' and 'diagonal', and this guide "
            f"({type(guide).__name__}) has neither: use guides.for_model(model), or set guide_optimizer='adam'"
        )
