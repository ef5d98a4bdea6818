"""The softmax twin of each run, with which it is compared."""

import os
from collections.abc import Iterable
from functools import partial

OF_LAYER = (
    "layer.",
    "warm_start",
    "train.elbo",
    "train.samples_per",
    "train.vectorize",
    "train.num_",
    "train.kl_",
    "train.local_kl_weight",
    "train.alpha_",
    "train.guide_",
)
"""Settings of a layer, and of its latent variables and regulariser, which softmax attention
lacks."""


def twins(runs: Iterable[str]) -> dict[str, str]:
    """Return the softmax run with which each run is compared, "" without one.

    Runs are named ``PRESET LAYER (CHANGES)``. A twin has a preset of the same family, and the same
    changes but those of :data:`OF_LAYER`. Of several the name begins most alike, or is shortest. A
    softmax run is its own twin.
    """
    kinds = {run: _kind(run) for run in runs}
    softmax = [run for run in kinds if run.partition(" (")[0].endswith("softmax")]
    pairs = {}
    for run, kind in kinds.items():
        alike = [twin for twin in softmax if kinds[twin] == kind]
        pairs[run] = max(
            alike,
            key=partial(_likeness, run),
            default="",
        )
    return pairs


def _kind(run: str) -> tuple[str, set[str]]:
    """Return the family of a run's preset, and its changes but those of the layer."""
    name, _, changes = run.partition(" (")
    common = {
        change for change in changes.rstrip(")").split(", ") if not change.startswith(OF_LAYER)
    }
    return name.rpartition("/")[0], common - {""}


def _likeness(run: str, twin: str) -> tuple[int, int]:
    """Return by what a twin is chosen: how much of the name is common, then a short name."""
    return len(os.path.commonprefix([run, twin])), -len(twin)
