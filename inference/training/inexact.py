"""Reasons for which a resumed run may differ from one that was not interrupted."""

import random
import warnings
from collections.abc import Mapping

from torch.utils.data import IterableDataset

from probattn.inference.distributed import random_state
from probattn.inference.distributed.loader_parts import MAX_PARTS
from probattn.inference.training.probe import Probe


class InexactResumeWarning(UserWarning):
    """Warning that a run, if it is interrupted, may not resume exactly as if it had not been."""


def find_reasons(probes: Mapping[str, Probe]) -> list[str]:
    """Return the reasons for which a run with these loaders may not resume exactly.

    Args:
        probes: probes of the loaders by name.
    """
    return [f"{name}: {reason}" for name, probe in probes.items() for reason in _reasons(probe)]


def warn(reasons: list[str]) -> None:
    """Warn once about all reasons.

    Warns:
        InexactResumeWarning: there are reasons.
    """
    if reasons:
        message = "an interrupted run may not resume exactly as if it had not been:\n  " + "\n  ".join(reasons)
        warnings.warn(message, InexactResumeWarning, stacklevel=4)  # of the caller of fit, which is decorated


def _reasons(probe: Probe) -> list[str]:
    parts, found = probe.parts, []
    if getattr(probe.loader, "persistent_workers", False):
        found.append(
            "persistent_workers=True keeps random states in processes between epochs, where they cannot be saved; if "
            "examples are augmented at random, use persistent_workers=False"
        )
    streams = {path for path, part in parts.items() if isinstance(part, IterableDataset)}
    if streams - random_state.stateful(parts).keys() and "" not in random_state.stateful(parts):
        found.append(
            "a stream of examples (IterableDataset) has a position that is not saved; give it state_dict() and "
            "load_state_dict(), unless each epoch reads it from its beginning"
        )
    found += [
        f"{path} (random.SystemRandom) has no state that could be saved; use random.Random"
        for path, part in parts.items()
        if isinstance(part, random.SystemRandom)
    ]
    if probe.changing:
        found.append(
            f"{', '.join(sorted(probe.changing))} changes while batches are read, and is not saved; give its object "
            "state_dict() and load_state_dict()"
        )
    elif probe.is_random:
        found.append(
            "the first batch differs each time it is read from the same random states, so a random number generator "
            "was not found; make it an attribute of the data set, of its transforms or of the sampler"
        )
    if len(parts) >= MAX_PARTS:
        found.append(f"it refers to more than {MAX_PARTS:,} objects, and further ones were not searched for generators")
    return found
