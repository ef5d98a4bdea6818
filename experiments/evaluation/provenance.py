"""Provenance of stored results: digests of everything that they were computed from, and what two of them differ in."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from probattn.experiments.config.validation import readable_errors
from probattn.experiments.data.sealed_files import digest
from probattn.experiments.data.text.tokens import ENCODER, TOKENIZER
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.eval_sets import TestSet
from probattn.experiments.runs.build import fitted_parts
from probattn.experiments.runs.folder import read_record
from probattn.experiments.runs.load import TrainedRun

LIBRARIES = ("probattn", "torch", "pyro-ppl")
"""Libraries that every prediction is computed with."""
FITTED_ON = ("train", "valid")
"""Parts that predictions on all test sets depend on: normalisation, methods and OOD detectors are fitted on them."""


@dataclass(frozen=True)
class Provenance:
    """Everything that predictions by one method, or their scores, were computed from.

    Args:
        weights: digest of ``best.pt``.
        settings: digest of the run's settings.
        tokens: digest of the files in the run's folder that define the tokens of texts.
        data: digest of the training and validation part and of each test set, by name.
        method: name of the method.
        num_samples: number of posterior samples.
        seed: seed of the samples.
        versions: versions of the libraries.
    """

    weights: str
    settings: str
    tokens: str
    data: dict[str, str]
    method: str
    num_samples: int
    seed: int
    versions: dict[str, str]

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read a provenance that was stored as a dict.

        Raises:
            SettingsError: content of another form.
        """
        with readable_errors():
            return TypeAdapter(cls).validate_python(content)

    def on(self, *names: str) -> Self:
        """Return the provenance of the predictions on these test sets only."""
        return replace(self, data={name: self.data[name] for name in dict.fromkeys((*FITTED_ON, *names))})


def by_method(
    run: TrainedRun, sets: Mapping[str, TestSet], names: Iterable[str], *, num_samples: int, seed: int
) -> dict[str, Provenance]:
    """Return the provenance of a run's predictions by several methods on all test sets, from what is there now."""
    state = state_of(run.folder)
    data = fitted_parts(run.dataset) | {name: each.digest() for name, each in sets.items()}
    common = {"data": data, "num_samples": num_samples, "seed": seed}
    return {
        name: Provenance(
            **state,
            **common,
            method=name,
            versions={library: version(library) for library in (*LIBRARIES, *methods.libraries(name))},
        )
        for name in names
    }


def state_of(folder: Path) -> dict[str, str]:
    """Return the digests of what a run's folder holds now: its weights, settings and tokens.

    The weights are left out for a folder without checkpoints, of which only the results were kept.
    """
    files = {name: (folder / name).read_bytes() for name in (TOKENIZER, ENCODER) if (folder / name).exists()}
    state = {"settings": digest(read_record(folder).settings), "tokens": digest(files)}
    best = folder / "best.pt"
    if best.exists() or (folder / "last.pt").exists():
        state["weights"] = digest(best.read_bytes() if best.exists() else None)
    return state


def digests(provenance: Mapping[str, Provenance]) -> dict[str, str]:
    """Return the digest of each provenance."""
    return {name: digest(each) for name, each in provenance.items()}


def differences(one: Provenance, other: Provenance) -> list[str]:
    """Return in words what two provenances differ in."""
    found = []
    if one.weights != other.weights:
        found.append("weights (trained on since, or another best.pt)")
    if one.settings != other.settings:
        found.append("settings (settings.json)")
    if one.tokens != other.tokens:
        found.append(f"tokens of the texts ({TOKENIZER} or {ENCODER})")
    changed = [name for name in one.data if name in other.data and one.data[name] != other.data[name]]
    if changed:
        found.append(f"data ({_shorten(changed)})")
    only = sorted(one.data.keys() ^ other.data.keys())
    if only:
        found.append(f"test sets ({_shorten(only)} in one only)")
    found += [
        f"{title} ({mine} and {theirs})"
        for title, mine, theirs in (
            ("method", one.method, other.method),
            ("number of samples", one.num_samples, other.num_samples),
            ("seed of the samples", one.seed, other.seed),
        )
        if mine != theirs
    ]
    libraries = dict.fromkeys((*one.versions, *other.versions))
    versions = [(each, one.versions.get(each), other.versions.get(each)) for each in libraries]
    return found + [f"version of {each} ({mine} and {theirs})" for each, mine, theirs in versions if mine != theirs]


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
