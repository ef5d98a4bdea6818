"""Natural-gradient descent of the Gaussian modules of a guide."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from probattn.families import Diagonal, Full


class NaturalGradientDescent(torch.optim.Optimizer):
    """Natural-gradient steps of a guide's Gaussian modules on their ELBO (Salimbeni et al., 2018).

    A module holds many Gaussians, which step together. Their covariances take steps of length
    ``lr``. With the joint posterior precision P, m ← m − ρ S ∂loss/∂m is Jacobi's iteration on
    blocks, and converges where ρ < 2 / λ, λ the largest eigenvalue of S P (Saad, 2003, *Iterative
    Methods for Sparse Linear Systems*, ch. 4): 1 for one Gaussian, at most B for B of them with
    their optimal S. So ρ starts at lr / B, is never shorter, and is never longer than lr. In
    between it follows c = dᵀ g_new / dᵀ g, what is left of the last gradient g along its step's
    direction d = S g. The curvature along d is (1 − c) / ρ, as in Barzilai & Borwein's (1988) step,
    and the step lowered a quadratic loss where c > −1. The next ρ is the one that would have given
    c = −½, at most twice the last: c = 0 would be the exact line search, but noise gives gradients
    with c ≤ 0 however short the step is.

    Shuffle the batches: in an order that repeats, the lengths weigh the batches differently, which
    biases the means.

    Args:
        modules: Gaussian modules of a guide (see :func:`gaussian_modules`).
        lr: 1 is a full step.
        scale: N / kl_weight for a loss of −ELBO/N, so that ``lr`` 1 is a full step on the tempered
            objective: with weight w of the KL this is w · (KL + data term / w).
    """

    def __init__(
        self, modules: Sequence[Full | Diagonal], *, lr: float = 1.0, scale: float
    ) -> None:
        self.modules = modules
        self.scale = scale
        super().__init__(nn.ModuleList(modules).parameters(), {"lr": lr})

    @torch.no_grad()
    # It evaluates no closure.
    def step(self, closure: Callable | None = None) -> None:  # type: ignore[override]
        """Update mean and covariance of each module whose parameters have gradients."""
        modules = [module for module in self.modules if _has_gradients(module)]
        if not modules:
            return
        lr = self.param_groups[0]["lr"]
        blocks = sum(module.blocks() for module in modules)
        length = self._length([module.loc for module in modules], lr / blocks, lr)
        for module in modules:
            direction = module.natural_step(lr, scale=self.scale)
            self.state[module.loc] = {
                "direction": direction,
                "decrement": (direction * cast(Tensor, module.loc.grad)).sum(),
                "length": length,
            }
            module.loc.sub_(length * direction)

    def _length(
        self, locs: list[nn.Parameter], shortest: float | Tensor, longest: float | Tensor
    ) -> Tensor:
        """Return the length of the means' step."""
        states = [self.state[loc] for loc in locs]
        length = locs[0].new_zeros(())
        if all(states):
            pairs = zip(states, locs, strict=True)
            slope = sum((state["direction"] * loc.grad).sum() for state, loc in pairs)  # dᵀ g_new
            decrement = sum(state["decrement"] for state in states)  # dᵀ g
            share = slope / decrement.clamp(min=torch.finfo(decrement.dtype).tiny)  # c
            length = states[0]["length"] * 1.5 / (1 - share).clamp(min=0.75)
        return length.clamp(min=shortest).clamp(max=longest)


def gaussian_modules(guide: nn.Module) -> list[Full | Diagonal]:
    """Return a guide's modules of the families ``full`` and ``diagonal``."""
    return [module for module in guide.modules() if isinstance(module, Full | Diagonal)]


def _has_gradients(module: nn.Module) -> bool:
    return all(parameter.grad is not None for parameter in module.parameters())
