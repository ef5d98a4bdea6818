"""States of random number generators: of this process and, under torchrun, of all ranks."""

from typing import Any

import torch

from probattn.inference.distributed.collectives import gather_results, world
from probattn.inference.io.checkpoint import CheckpointError


def capture(loader: Any) -> dict[str, Any]:
    """Return the states of PyTorch's generators and of the generator of the loader or its sampler, if it has one."""
    generator = _generator(loader)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "loader": None if generator is None else generator.get_state(),
    }


def restore(states: dict[str, Any], loader: Any) -> None:
    """Set the states that :func:`capture` returned.

    Raises:
        CheckpointError: a loader with a generator where the saved one had none, or the other way round.
    """
    generator = _generator(loader)
    if (generator is None) != (states["loader"] is None):
        had, has = ("no", "one") if states["loader"] is None else ("a", "none")
        raise CheckpointError(f"cannot resume exactly: the training loader had {had} generator and now has {has}")
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    if generator is not None:
        generator.set_state(states["loader"])


def capture_all_ranks(loader: Any) -> list[dict[str, Any]]:
    """Return the random states of all ranks in order (see :func:`capture`)."""
    return gather_results(lambda: capture(loader))


def restore_own_rank(states: list[dict[str, Any]] | dict[str, Any], loader: Any) -> None:
    """Set the random states of this rank.

    A run may continue with another number of ranks. It then sees the same batches in the same order, but draws other
    samples than it would have drawn without the interruption.

    Args:
        states: from :func:`capture_all_ranks`, or a single state from :func:`capture`.
        loader: training loader, whose generator is also restored.
    """
    states = [states] if isinstance(states, dict) else states
    rank, size = world()
    if len(states) == size:
        restore(states[rank], loader)
    else:
        restore(states[0] | {"cuda": []}, loader)
        torch.manual_seed(int(torch.randint(2**62, ())))
        seed_per_rank()


def seed_per_rank() -> None:
    """Seed each rank but the first differently, from a random state that all ranks share."""
    rank = world().rank
    if rank > 0:
        torch.manual_seed(int(torch.randint(2**62, ())) + rank)


def _generator(loader: Any) -> torch.Generator | None:
    own = getattr(loader, "generator", None)
    return own if own is not None else getattr(getattr(loader, "sampler", None), "generator", None)
