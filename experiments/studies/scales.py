"""Sizes at which the papers' tables and figures are reproduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.studies.entries import Entry, Model, Part


@dataclass(frozen=True)
class Reduction:
    """Reduced size of the runs of one paper on one data set: total epochs, and changes of the settings."""

    epochs: int
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """Size at which an entry is reproduced.

    Args:
        name: ``full`` or ``cpu``.
        seeds: number of seeds; None takes the paper's, or 3 where it is not given.
        severities: severities of corruptions; None takes the paper's.
        reductions: ``PAPER/DATA`` → reduction; none at full size.
        changes: further ``key=value`` changes of the settings of all runs, which the notes of the tables name.
    """

    name: str
    seeds: int | None = None
    severities: tuple[int, ...] | None = None
    reductions: Mapping[str, Reduction] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Suffix of titles of results that are not those of the paper's experiment; empty at full size."""
        return f"reduced ({self.name})" if self.reductions else ""

    def number_of_seeds(self, entry: Entry) -> int:
        """Return the number of seeds of an entry."""
        return self.seeds or entry.trials or 3

    def settings(self, model: Model, *, seed: int) -> Settings:
        """Return the settings of a run at this size.

        Raises:
            SettingsError: a reduced size is not defined for the model's data.
        """
        changes, epochs = [*model.changes, f"train.seed={seed}"], None
        if self.reductions:
            paper, _, rest = model.preset.partition("/")
            key = paper if paper == "digits" else f"{paper}/{rest.partition('-')[0]}"
            if key not in self.reductions:
                raise SettingsError(f"--scale {self.name} has no size for {key}; known: {', '.join(self.reductions)}")
            epochs = self.reductions[key].epochs
            changes += self.reductions[key].changes
        settings = presets.preset(model.preset).with_changes([*changes, *self.changes])
        return settings if epochs is None else settings.with_total_epochs(epochs)

    def adapt(self, part: Part) -> Part:
        """Return a block with the corruptions' severities of this size, and its changes in the note."""
        if self.changes:
            part = replace(part, note=f"{part.note} All runs have {', '.join(self.changes)}.".strip())
        fewer = part.severities and self.severities
        return replace(part, severities=self.severities) if fewer else part


_SMALL_VIT = ("network.depth=4", "network.dim=128", "network.heads=4", "network.mlp_dim=256")
_SMALLER_VIT = ("network.depth=2", "network.dim=64", "network.heads=4", "network.mlp_dim=64", "data.limit=10000")
SCALES = {
    "full": Scale("full"),
    "cpu": Scale(
        "cpu",
        seeds=2,
        severities=(3,),
        reductions={
            "digits": Reduction(3),
            "kep-svgp/cifar10": Reduction(10, _SMALL_VIT),
            "kep-svgp/cifar100": Reduction(10, _SMALL_VIT),
            "kep-svgp/imdb": Reduction(4, ("data.limit=7000", "network.max_length=128")),
            "kep-svgp/cola": Reduction(10),
            "cgp/cifar10": Reduction(6, _SMALLER_VIT),
            "cgp/cifar100": Reduction(6, _SMALLER_VIT),
            "cgp/cola": Reduction(10),
        },
    ),
}
"""Sizes by name. ``cpu`` is hours of a CPU in place of weeks; what it yields is not compared with the paper."""
