"""Options of an evaluation, as ``metrics.json`` holds them, and the command that repeats it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from probattn.experiments.config.validation import readable_errors
from probattn.experiments.evaluation.eval_sets import SEVERITIES, STANDARD


@dataclass(frozen=True)
class EvaluationOptions:
    """Arguments of :func:`probattn.experiments.evaluation.evaluate.evaluate`."""

    num_samples: int
    seed: int
    by: tuple[str, ...]
    shift: bool
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    ood: tuple[str, ...]
    root: str | None
    convergence: bool = True

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read options that were stored as a dict.

        Raises:
            SettingsError: content of another form.
        """
        with readable_errors():
            return TypeAdapter(cls).validate_python(content)

    def command(self, folder: Path) -> str:
        """Return the command that evaluates a run with these options."""
        words = ["probattn", "evaluate", str(folder), "--num-samples", str(self.num_samples)]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--data", self.root] if self.root is not None else []
        words += [] if self.convergence else ["--no-convergence"]
        words += _listed("--method", self.by)
        if self.shift:
            words += ["--shift"]
            words += _listed("--corruptions", self.corruptions) if self.corruptions != STANDARD else []
            words += _listed("--severities", self.severities) if self.severities != SEVERITIES else []
        return shlex.join([*words, *_listed("--ood", self.ood)])


def _listed(option: str, values: Sequence[Any]) -> list[str]:
    return [option, ",".join(map(str, values))] if values else []
