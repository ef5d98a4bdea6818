"""Random states as tensors, so that a resumed run draws what the run that was not killed would have drawn."""

from typing import Any

import torch

from probattn.inference.checkpoint import CheckpointError


def capture(loader: Any) -> dict[str, Any]:
    """States of PyTorch's generators and of that of the loader or its sampler, if it has one."""
    generator = _generator(loader)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "loader": None if generator is None else generator.get_state(),
    }


def restore(states: dict[str, Any], loader: Any) -> None:
    """Sets the states that :func:`capture` took.

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


def _generator(loader: Any) -> torch.Generator | None:
    own = getattr(loader, "generator", None)
    return own if own is not None else getattr(getattr(loader, "sampler", None), "generator", None)
