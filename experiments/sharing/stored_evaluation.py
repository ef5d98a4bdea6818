"""Results of an evaluation that go with a run when it is used or shared: metrics and the conformal threshold."""

import math
from collections import Counter
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from probattn.experiments.config.validation import SettingsError, readable_errors
from probattn.experiments.data.sealed_files import read_json
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.inference.io.checkpoint import CheckpointError


@dataclass(frozen=True)
class StoredEvaluation:
    """Metrics of a run on its test data, and the threshold of its prediction sets.

    Args:
        metrics: metrics of the posterior predictive, unscaled; None where one is not defined.
        num_samples, seed: of the posterior samples.
        hardware: versions and hardware of the evaluation.
        alpha: probability with which a conformal set may miss the true class; None if no threshold was stored.
        quantile: the calibrated quantile q̂; None: sets hold all classes.
        states: by latent site, the key word of its verdict (``SiteConvergence.state``); empty if none was measured.
    """

    metrics: dict[str, float | None]
    num_samples: int
    seed: int
    hardware: dict[str, str]
    alpha: float | None = None
    quantile: float | None = None
    states: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Numbers of latent sites by the verdict on their posterior, such as ``2 of 3 sites alive``; or empty."""
        counts = Counter(self.states.values())
        return ", ".join(f"{count} of {len(self.states)} sites {state}" for state, count in counts.items())

    @property
    def threshold(self) -> float | None:
        """The quantile q̂: a class of probability p is in the set if 1 − p ≤ q̂ (LAC); None without a threshold."""
        if self.alpha is None:
            return None
        return math.inf if self.quantile is None else self.quantile

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as ``config.json`` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read an evaluation back.

        Raises:
            CheckpointError: content of another form.
        """
        try:
            with readable_errors():
                return TypeAdapter(cls).validate_python(content)
        except SettingsError as error:
            raise CheckpointError(f"the evaluation in a shared folder cannot be read: {error}") from error

    @classmethod
    def of_run(cls, folder: Path) -> Self | None:
        """Return the evaluation of the run in a folder; None if it was not evaluated.

        Raises:
            SettingsError: a damaged ``metrics.json``, or a run that has changed since it was evaluated.
        """
        if not (folder / "metrics.json").exists():
            return None
        run, content = read_evaluated_run(folder), read_json(folder / "metrics.json")
        sets = (content.get("decisions") or {}).get("plain") or {}
        sites = (content.get("convergence") or {}).get("sites") or []
        if "quantile" not in sets:
            sets = {}
        return cls(
            metrics={name: _finite(value) for name, value in run.scores[methods.POSTERIOR].test.items()},
            num_samples=run.options.num_samples,
            seed=run.options.seed,
            hardware=content.get("evaluated_on") or {},
            alpha=sets.get("alpha"),
            quantile=sets.get("quantile"),
            states={row["site"]: row["state"] for row in sites if "state" in row},
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
