"""Gradients of the KL and of the rest of the objective on a guide's parameters; both cancel at an optimum."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.draws import draws
from probattn.inference.elbo import ELBOLoss
from probattn.weights import kl_weight


class GradientPair(NamedTuple):
    """Gradients of −ELBO on one parameter, in nats.

    Args:
        kl: of the weighted KL of the global sites.
        likelihood: of everything else, averaged over batches and draws.
        noise: standard error of ``likelihood``.
    """

    kl: Tensor
    likelihood: Tensor
    noise: Tensor


class GradientBalance(NamedTuple):
    """Norms of the two gradients on one parameter.

    Args:
        ratio: ‖g_KL‖ / ‖g_nll‖, 1 at an optimum.
        cosine: of the angle between them, −1 at an optimum.
        residual: ‖g_KL + g_nll‖ / (‖g_KL‖ + ‖g_nll‖), in [0, 1], 0 at an optimum.
        noise: residual that the noise of g_nll alone would give: ‖standard error‖ / (‖g_KL‖ + ‖g_nll‖).
    """

    ratio: float
    cosine: float
    residual: float
    noise: float


def scalars(name: str, value: Tensor) -> Tensor:
    """Return the entries of a parameter that are compared: of a Cholesky factor the diagonal, else all.

    Gradients off the diagonal do not shrink with the standard deviations, unlike those on it, and would hide them.
    """
    return value.diagonal(dim1=-2, dim2=-1) if name.endswith("raw_tril") else value


MIN_DRAWS = 128
"""Draws per batch, at least: with fewer examples, several draws each."""


@contextmanager
def objective(batch: tuple, weights: tuple[float, float], *, per_example: bool) -> Iterator[None]:
    """Context manager of the training objective with its KL weights, and enough draws for a batch.

    Args:
        batch: ``(x, y)`` or ``(x, y, mask)``.
        weights: KL weights of global and local sites.
        per_example: draw for each example, instead of once.
    """
    with ExitStack() as stack:
        stack.enter_context(kl_weight(weights[0], local=weights[1]))
        if per_example:
            stack.enter_context(draws("example"))
            particles = MIN_DRAWS // len(batch[0])
            if particles > 1:
                stack.enter_context(draws(particles))
        yield


def gradients(
    model: nn.Module,
    guide: nn.Module,
    batches: Sequence[tuple],
    *,
    weights: tuple[float, float] = (1.0, 1.0),
    passes: int = 2,
    per_example: bool = True,
) -> dict[str, GradientPair]:
    """Compute the gradients of the KL and of the rest of −ELBO on every parameter of a guide.

    The KL of global sites does not depend on the data: its gradient is the difference of the whole gradient on the
    first batch and that without KL, with the same draws; so it is exact where the KL has a closed form.

    Args:
        model, guide: the model with fixed parameters, and the guide, all of whose parameters require gradients.
        batches: ``(x, y)`` or ``(x, y, mask)``; each is scaled to the data set by the model.
        weights: KL weights of global and local sites.
        passes: number of passes over the batches, each with its own draws.
        per_example: draw for each example, instead of for each batch.

    Returns:
        Gradients by parameter name, of its :func:`scalars`.
    """
    names, parameters = zip(*guide.named_parameters(), strict=True)
    loss_of = ELBOLoss(model, guide)

    def gradient(batch: tuple, weight: float) -> list[Tensor]:
        with objective(batch, (weight, weights[1]), per_example=per_example):
            loss = loss_of(*batch)
        found = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else [None] * len(names)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]

    def kl_gradient() -> list[Tensor]:
        seed = int(torch.randint(2**31, ()))
        torch.manual_seed(seed)
        whole = gradient(batches[0], weights[0])
        torch.manual_seed(seed)
        return [a - b for a, b in zip(whole, gradient(batches[0], 0.0), strict=True)]

    kl = [torch.stack(each).mean(0) for each in zip(*(kl_gradient() for _ in range(passes)), strict=True)]
    sizes = torch.tensor([float(len(batch[0])) for batch in batches])
    shares = (sizes / sizes.mean()).tolist() * passes
    rest = [gradient(batch, 0.0) for _ in range(passes) for batch in batches]
    found = {}
    for at, name in enumerate(names):
        values = torch.stack([share * each[at] for share, each in zip(shares, rest, strict=True)])
        parts = kl[at], values.mean(0), values.std(0) / len(values) ** 0.5
        found[name] = GradientPair(*(scalars(name, part) for part in parts))
    return found


def balance(pair: GradientPair) -> GradientBalance | None:
    """Compare the norms of two gradients; None if both are 0."""
    kl, likelihood = pair.kl.double().flatten(), pair.likelihood.double().flatten()
    norms = kl.norm() + likelihood.norm()
    if norms == 0:
        return None
    return GradientBalance(
        ratio=(kl.norm() / likelihood.norm()).item(),
        cosine=torch.nn.functional.cosine_similarity(kl, likelihood, dim=0, eps=0.0).nan_to_num().item(),
        residual=((kl + likelihood).norm() / norms).item(),
        noise=(pair.noise.double().norm() / norms).item(),
    )
