"""Sweeps: settings of a study's presets that are chosen on validation data, before all seeds are trained."""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train
from probattn.experiments.studies.study import Job, finished, plan
from probattn.inference.metrics import MONITORS

FIXED = ("train.seed", "train.monitor", "data.name", "data.limit", "data.seed")
"""Settings that cannot be swept: values would be compared on other validation data, or by another metric."""
Values = Mapping[str, Mapping[str, Sequence[str]]]
"""Preset → setting → its values, as ``--set`` takes them."""


def parse(texts: Sequence[str], names: Sequence[str]) -> Values:
    """Return the values of ``[PRESET:]KEY=VALUE,VALUE,…``; without a preset they are for all.

    Raises:
        SettingsError: another form, a preset that is not in the study, or a setting that cannot be swept.
    """
    values: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        target, _, listed = text.partition("=")
        name, _, key = target.rpartition(":")
        if not (key and listed) or name not in ("", *names):
            raise SettingsError(f"--sweep takes [PRESET:]KEY=VALUE,… of the study's {', '.join(names)}, got {text!r}")
        if key in FIXED:
            raise SettingsError(f"--sweep: values of {key} have no common validation metric; use --set {key}=VALUE")
        choices = [value if isinstance(value, str) else json.dumps(value) for value in yaml.safe_load(f"[{listed}]")]
        for preset in [name] if name else names:
            values.setdefault(preset, {})[key] = choices
    return values


def sweep(
    values: Values, *, workers: int, say: Callable[[str], None] = lambda text: None, **options: Any
) -> pd.DataFrame:
    """Train all combinations of the values of each preset with seed 0; nothing is evaluated on test data.

    Args:
        values: what is swept.
        workers, say: as for :func:`~probattn.experiments.studies.study.run_study`.
        options: further ones of :func:`~probattn.experiments.studies.study.plan`.

    Returns:
        Columns ``preset, changes, metric, value, chosen``: the validation metric of the best epoch, NaN without one,
        and True for the best changes of each preset, of equal ones the first.

    Raises:
        SettingsError: settings that are invalid, or a preset without any value of its metric.
    """
    jobs, rows = {}, {}
    for name, lists in values.items():
        for chosen in itertools.product(*lists.values()):
            changes = tuple(f"{key}={value}" for key, value in zip(lists, chosen, strict=True))
            (job,) = plan([name], seeds=1, preset_changes={name: changes}, **options)
            jobs[job.folder] = job
            rows[job.folder] = {"preset": name, "changes": changes, "metric": job.settings.train.monitor or "nll"}
    with contextlib.closing(finished(validation_value, list(jobs.values()), workers)) as results:
        for number, (job, value) in enumerate(results, 1):
            rows[job.folder]["value"] = value
            say(f"sweep, {number} of {len(jobs)}: {job.folder.parent}, valid {rows[job.folder]['metric']} {value:.4f}")
    frame = pd.DataFrame(rows.values()).assign(chosen=False)
    for name, group in frame.groupby("preset", sort=False):
        if group["value"].isna().all():
            raise SettingsError(f"--sweep of {name}: no run has a valid {group['metric'].iloc[0]}; sweep other values")
        best = group["value"].idxmax() if MONITORS[group["metric"].iloc[0]] else group["value"].idxmin()
        frame.loc[best, "chosen"] = True
    return frame


def validation_value(job: Job) -> float:
    """Train a run, or resume it, and return the monitored metric of its best epoch; NaN without one."""
    history = train.train(job.settings, job.folder, name=job.name, root=job.root, resume=True, progress=False)
    return math.nan if history.best_value is None else history.best_value
