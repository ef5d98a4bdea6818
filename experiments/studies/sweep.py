"""Sweeps: settings of a study's presets that are chosen on validation data, before all seeds are trained."""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from statistics import fmean

from probattn.experiments.config import presets
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train
from probattn.experiments.runs.workers import run_in_workers
from probattn.experiments.studies.collect import differ_in_layer_only
from probattn.experiments.studies.study import Job, plan
from probattn.inference.metrics import MONITORS

Lists = Mapping[str, tuple[str, ...]]
"""Values of each swept setting of a preset, as ``--set`` takes them."""
FIXED = {
    "train.seed": "the seeds are 0, 1, …; use --sweep-seeds N to train each value with several",
    "train.monitor": "it is the metric that chooses between the values; change it for all of them with --set",
    **dict.fromkeys(
        ("data.name", "data.limit", "data.seed"),
        "it changes the validation data, so that values cannot be compared; change it for all of them with --set",
    ),
}
"""Settings that cannot be swept, and why."""


@dataclass(frozen=True)
class Candidate:
    """A combination of the swept values of a preset, as changes ``key=value``, and its runs, one for each seed."""

    changes: tuple[str, ...]
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Choice:
    """The candidates of a preset and the one that was chosen.

    Args:
        preset: name of the preset.
        lists: the swept values.
        monitor: the validation metric.
        candidates: all combinations.
        values: metric of the best epoch, for each candidate and seed; NaN if no epoch had one.
        best: index of the chosen candidate.
    """

    preset: str
    lists: Lists
    monitor: str
    candidates: tuple[Candidate, ...]
    values: tuple[tuple[float, ...], ...]
    best: int

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes of the chosen candidate."""
        return self.candidates[self.best].changes

    def __str__(self) -> str:
        """Return a sentence: the chosen value of each setting, from which values, and by which metric."""
        chosen = (f"{change} (of {', '.join(self.lists[change.partition('=')[0]])})" for change in self.changes)
        seeds = ", ".join(str(job.seed) for job in self.candidates[self.best].jobs)
        plural = "s" if len(self.values[self.best]) > 1 else ""
        return f"{self.preset}: {', '.join(chosen)}, chosen by validation {self.monitor} of seed{plural} {seeds}."


def parse(texts: Sequence[str], names: Sequence[str]) -> dict[str, Lists]:
    """Return the swept settings of each preset, from texts ``[PRESET:]KEY=VALUE,VALUE,…``.

    Args:
        texts: values of ``--sweep``; without a preset for all of them. Several for one preset form a grid.
        names: presets of the study; those without a sweep are left out of the result.

    Raises:
        SettingsError: a malformed text, a preset that is not in the study, a setting that cannot be swept, or one that
            is swept twice.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in names}
    for text in texts:
        target, equals, values = text.partition("=")
        preset, _, key = target.rpartition(":")
        if not (equals and key):
            raise SettingsError(f"--sweep takes [PRESET:]KEY=VALUE,VALUE,…, got {text!r}")
        if preset and preset not in found:
            near = get_close_matches(preset, found, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"--sweep {text}: {preset!r} is no preset of this study; {guess}its presets: {', '.join(found)}"
            )
        if key in FIXED:
            raise SettingsError(f"--sweep {text}: {key} cannot be swept: {FIXED[key]}")
        for name in [preset] if preset else found:
            if key in found[name]:
                raise SettingsError(f"--sweep {text}: {key} of {name} has another --sweep; give all values in one")
            found[name][key] = tuple(split_values(values))
    return {name: lists for name, lists in found.items() if lists}


def split_values(text: str) -> list[str]:
    """Split a list of values at the commas outside of brackets and quotation marks.

    A value in double quotation marks is a JSON string: ``"0,1"`` is the one value ``0,1``.

    Raises:
        SettingsError: an empty value, or brackets or quotation marks that do not match.
    """
    parts, depth, quoted, escaped = [""], 0, False, False
    for character in text:
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == "," and depth == 0:
            parts.append("")
            continue
        else:
            quoted = character == '"'
            depth += (character in "{[(") - (character in ")]}")
        parts[-1] += character
    if quoted or depth:
        raise SettingsError(f"--sweep: brackets or quotation marks of {text!r} do not match")
    values = [_unquoted(part.strip()) for part in parts]
    if "" in values:
        raise SettingsError(f"--sweep: an empty value in {text!r}; separate values by single commas")
    return values


def plan_sweeps(
    sweeps: Mapping[str, Lists],
    *,
    seeds: int,
    epochs: int | None,
    out: Path,
    changes: Sequence[str] = (),
    root: Path | None = None,
) -> dict[str, tuple[Candidate, ...]]:
    """Return the candidates of each preset: all combinations of its values.

    Args:
        sweeps: the swept settings of each preset.
        seeds: number of runs of each candidate.
        epochs, out, changes, root: as for :func:`~probattn.experiments.studies.study.plan`.

    Raises:
        SettingsError: an unknown setting, a value that it refuses, candidates with the same settings, or a sweep of
            ``train.epochs`` besides ``epochs``.
    """
    planned = {}
    for name, lists in sweeps.items():
        if epochs is not None and "train.epochs" in lists:
            raise SettingsError(f"--sweep of {name}: --epochs sets train.epochs of all runs; give one of the two")
        candidates = []
        for values in itertools.product(*lists.values()):
            own = tuple(f"{key}={value}" for key, value in zip(lists, values, strict=True))
            common = {"seeds": seeds, "epochs": epochs, "out": out, "changes": changes, "root": root}
            try:
                jobs = plan([name], own={name: own}, **common)
                same = [other for other in candidates if other.jobs[0].settings == jobs[0].settings]
            except SettingsError as error:
                raise SettingsError(f"--sweep of {name}, {', '.join(own)}: {error}") from error
            if same:
                raise SettingsError(
                    f"--sweep of {name}: {', '.join(same[0].changes)} and {', '.join(own)} are the same settings; "
                    "list each once"
                )
            candidates.append(Candidate(own, tuple(jobs)))
        planned[name] = tuple(candidates)
    return planned


def budgets(
    names: Sequence[str], planned: Mapping[str, Sequence[Candidate]], *, seeds: int, sweep_seeds: int
) -> list[str]:
    """Return a line with the trainings of each preset, and a warning for each pair of twins with other numbers of them.

    Args:
        names: presets of the study.
        planned: candidates of those with a sweep.
        seeds, sweep_seeds: number of runs of the chosen candidate, and of each candidate.
    """
    first = "seed 0" if sweep_seeds == 1 else f"seeds 0 to {sweep_seeds - 1}"
    tried = {name: len(planned.get(name, [None])) for name in dict.fromkeys(names)}
    lines = []
    for name, count in tried.items():
        if name not in planned:
            lines.append(f"{name}: {seeds} trainings, no sweep")
            continue
        total = count * sweep_seeds + max(0, seeds - sweep_seeds)
        rest = f", then {seeds - sweep_seeds} of the best one" if seeds > sweep_seeds else ""
        lines.append(f"{name}: {total} trainings, {count} candidates with {first}{rest}")
    for one, other in itertools.combinations(tried, 2):
        twins = differ_in_layer_only(presets.preset(one), presets.preset(other))
        if twins and tried[one] != tried[other]:
            lines.append(
                f"warning: {one} is chosen from {tried[one]} and {other} from {tried[other]}: "
                "the tuning budget is not the same, so that their comparison favours the one with more"
            )
    return lines


def run_sweeps(
    sweeps: Mapping[str, Lists],
    planned: Mapping[str, Sequence[Candidate]],
    *,
    workers: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Choice]:
    """Train the candidates, or resume them, and choose one for each preset; nothing is evaluated on test data.

    Args:
        sweeps, planned: swept settings and candidates of each preset.
        workers: number of runs at a time, of one thread each.
        say: called with a message after each run.

    Raises:
        SettingsError: a preset of which no candidate has a value of its metric for each seed.
        Exception: the first one of a run.
    """
    candidates = [candidate for each in planned.values() for candidate in each]
    todo = [job for jobs in zip(*(candidate.jobs for candidate in candidates), strict=True) for job in jobs]
    values: dict[Path, float] = {}
    with contextlib.closing(run_in_workers(validation_value, todo, workers=workers)) as finished:
        for job, value in finished:
            values[job.folder] = value
            monitor, own = job.settings.train.monitor or "nll", ", ".join(job.own)
            where = f"{job.preset}, {own}, seed {job.seed}"
            say(f"sweep, {len(values)} of {len(todo)}: {where}, valid {monitor} {value:.4f}")
    choices = []
    for name, each in planned.items():
        monitor = each[0].jobs[0].settings.train.monitor or "nll"
        scores = tuple(tuple(values[job.folder] for job in candidate.jobs) for candidate in each)
        best = choose(scores, higher_is_better=MONITORS[monitor])
        if best is None:
            raise SettingsError(
                f"--sweep of {name}: no candidate has a valid {monitor} for each seed: "
                "choose another with --set train.monitor=METRIC"
            )
        choices.append(Choice(name, sweeps[name], monitor, tuple(each), scores, best))
    return choices


def validation_value(job: Job) -> float:
    """Train a run, or resume it, and return the monitored metric of its best epoch; NaN without one."""
    history = train.train(job.settings, job.folder, name=job.preset, root=job.root, resume=True, progress=False)
    return math.nan if history.best_value is None else history.best_value


def choose(values: Sequence[Sequence[float]], *, higher_is_better: bool) -> int | None:
    """Return the index of the best mean; of several the first. Means that are NaN lose; None if all are.

    Args:
        values: metric for each candidate and seed.
        higher_is_better: direction of the metric.
    """
    means = {at: fmean(each) for at, each in enumerate(values)}
    valid = {at: mean for at, mean in means.items() if not math.isnan(mean)}
    return (max if higher_is_better else min)(valid, key=valid.__getitem__, default=None)


def outcome(choices: Sequence[Choice]) -> list[str]:
    """Return a sentence for each choice, and a warning for each other run that was evaluated on test data before."""
    lines = [str(choice) for choice in choices]
    for choice in choices:
        others = [each for each in choice.candidates if each.changes != choice.changes]
        folders = [job.folder for candidate in others for job in candidate.jobs]
        lines += [
            f"warning: {folder} was evaluated on test data by an earlier study, but is not chosen now"
            for folder in folders
            if (folder / "metrics.json").exists()
        ]
    return lines


def _unquoted(value: str) -> str:
    """Return the text of a JSON string; other values as they are."""
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError as error:
        raise SettingsError(f"--sweep: {value} is no JSON string") from error
