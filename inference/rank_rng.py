"""Random numbers of several ranks: a stream each, and their states in one checkpoint."""

from typing import Any

import torch

from probattn.inference import rng
from probattn.inference.distributed import on_every_rank, world


def diverge() -> None:
    """Gives each rank but the first, whose go on, random numbers of its own, from a state that all ranks share."""
    rank = world().rank
    if rank > 0:
        torch.manual_seed(int(torch.randint(2**62, ())) + rank)


def capture(loader: Any) -> list[dict[str, Any]]:
    """The random states of all ranks, in their order (see :func:`probattn.inference.rng.capture`)."""
    return on_every_rank(lambda: rng.capture(loader))


def restore(states: list[dict[str, Any]] | dict[str, Any], loader: Any) -> None:
    """Sets the random states of this rank.

    A run may go on with another number of ranks: with the same batches in the same order, but with other draws, and so
    not as it would have gone on without.

    Args:
        states: of :func:`capture`, or the only one.
        loader: whose generator gets its state, too.
    """
    states = [states] if isinstance(states, dict) else states
    rank, size = world()
    if len(states) == size:
        rng.restore(states[rank], loader)
    else:
        rng.restore(states[0] | {"cuda": []}, loader)
        torch.manual_seed(int(torch.randint(2**62, ())))
        diverge()
