"""Studies: presets with several layers and seeds on any data, checked before the first training, and resumable."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from probattn.experiments.config.data import OwnDataSettings
from probattn.experiments.config.presets import PRESETS, preset, with_layer
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.ood_sets import default_names
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.eval_sets import eval_sets
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.metric_display import displays, format_value, unit
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.runs import train
from probattn.experiments.runs.build import build, generator
from probattn.experiments.runs.seeds import check_seedless
from probattn.experiments.runs.sources import load_data
from probattn.experiments.runs.workers import run_in_workers
from probattn.guides import Guide
from probattn.inference import CheckpointError, predict, warm_start
from probattn.models import Supervised

SEVERITIES = (1, 3, 5)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of a study: the name of its preset, its settings and folder, and the folder of the data sets."""

    name: str
    settings: Settings
    folder: Path
    root: Path | None = None


def plan(
    names: Sequence[str],
    *,
    seeds: int,
    out: Path,
    epochs: int | None = None,
    layers: Sequence[str] = (),
    changes: Sequence[str] = (),
    data: Path | str | None = None,
) -> list[Job]:
    """Return the runs of a study: all presets and layers with the first seed, then with the next.

    Args:
        names: presets.
        seeds: number of runs of each.
        out: folder of the runs, ``PRESET/seed-SEED``, or ``PRESET/LAYER/seed-SEED`` for layers that no preset has.
        epochs: epochs of each run, warm start included; None takes the preset's.
        layers: layers of each preset, as presets of its family have them, or else as
            :func:`~probattn.experiments.config.presets.with_layer`; none takes the presets' own.
        changes: changed settings, ``key=value``; those of ``layers`` count for the layers that have them.
        data: a user's own data, or the folder of the data sets.

    Raises:
        SettingsError: an unknown preset or layer, or changes that are invalid or set the seed.
        NotADirectoryError: ``data`` is no folder, for a preset that takes the folder of the data sets.
    """
    check_seedless(changes)
    keys = [change.partition("=")[0] for change in changes]
    of_layers = {key for key in keys if layers and key.startswith("layer.")}
    kinds, known = {}, set()
    for name, settings in _variants(names, layers):
        lacking = of_layers - {f"layer.{option.name}" for option in fields(settings.layer)}
        known |= of_layers - lacking
        suitable = [change for key, change in zip(keys, changes, strict=True) if key not in lacking]
        own_data = data is not None and isinstance(settings.data, OwnDataSettings)
        if data is not None and not own_data and not Path(data).is_dir():
            raise NotADirectoryError(f"{data} is no folder of data sets: correct --data, or create it")
        settings = settings.with_changes([f"data.path={data}", *suitable] if own_data else suitable)
        settings = settings if epochs is None else settings.with_total_epochs(epochs)
        layer = settings.layer.name
        folder = out / name if layer == preset(name).layer.name else out / name / layer.replace(":", ".")
        kinds[folder] = name, settings, None if own_data or not data else Path(data)
    if of_layers - known:
        raise SettingsError(f"none of the layers has {', '.join(of_layers - known)}; `probattn presets NAME` lists all")
    return [
        Job(name=name, settings=settings.with_changes([f"train.seed={n}"]), folder=folder / f"seed-{n}", root=root)
        for n in range(seeds)
        for folder, (name, settings, root) in kinds.items()
    ]


def check(
    jobs: Sequence[Job],
    *,
    by: Sequence[str] | None = None,
    shift: bool | None = None,
    ood: Sequence[str] | None = None,
    **corrupted: Sequence,
) -> dict[str, Any]:
    """Check everything that training and evaluation need: folders, data, layers, models, methods, test sets.

    Args:
        jobs: the runs.
        by: methods besides the posterior predictive; None takes those of :data:`~methods.DEFAULT` that all models can.
        shift: evaluate on corrupted images; None if the data are images.
        ood: OOD image sets; None takes the default ones of images.
        corrupted: ``corruptions`` and ``severities``.

    Returns:
        Options of :func:`~probattn.experiments.evaluation.evaluate.evaluate` for all runs.

    Raises:
        SettingsError: something that does not suit; says what.
        DatasetError, FileExistsError: data that cannot be read; a folder of something else.
    """
    for job in jobs:
        train.check(job.settings, job.folder, resume=True)
    kinds, datasets = {job.folder.parent: job for job in jobs}.values(), {}
    for job in kinds:
        key = repr((job.settings.data, job.settings.network, job.root))
        if key not in datasets:
            datasets[key] = load_data(job.settings, job.root)
    by_digest = {dataset.test.digest: dataset for dataset in datasets.values()}
    if len(by_digest) > 1:
        names = " and ".join(dataset.name for dataset in by_digest.values())
        raise SettingsError(f"the presets have other test data, {names}: study those of one data set only")
    (dataset,) = by_digest.values()
    shift = isinstance(dataset, ImageDataset) if shift is None else shift
    options = {"shift": shift, "ood": tuple(_default_ood(dataset) if ood is None else ood), **corrupted}
    eval_sets(dataset, root=jobs[0].root, **options)
    names = methods.check(methods.DEFAULT if by is None and dataset.classes else by or ())[1:]
    for job in kinds:
        parts = _check_model(job, datasets[repr((job.settings.data, job.settings.network, job.root))])
        suits = {"has_classes": bool(dataset.classes), "kl_weight": job.settings.train.kl_weight}
        for name in names:
            try:
                methods.check_model(name, *parts, **suits)
            except SettingsError:
                if by is not None:
                    raise
                names = tuple(other for other in names if other != name)
    return options | {"by": names}


def run_study(
    jobs: Sequence[Job], *, workers: int, say: Callable[[str], None] = lambda text: None, **options: Any
) -> None:
    """Check, train and evaluate the runs, several at a time; a stopped study keeps what is done.

    Args:
        jobs: the runs.
        workers: number of processes, of one thread each; 1 runs all in this process.
        say: called with a message after each run.
        options: those of :func:`check`; ``severities`` are by default 1, 3 and 5.

    Raises:
        Exception: as for :func:`check`; the first one of a run, whereupon the others stop until the study continues.
    """
    options = check(jobs, **({"severities": SEVERITIES} | options))
    for _ in run_jobs(jobs, workers=workers, say=say, convergence=False, **options):
        pass


def run_jobs(
    jobs: Sequence[Job], *, workers: int, say: Callable[[str], None] = lambda text: None, **options: Any
) -> Iterator[tuple[Job, RunResult]]:
    """Train, or resume, and evaluate runs without further checks; yield each with its result when it finishes.

    Args:
        jobs, workers, say: as for :func:`run_study`.
        options: those of :func:`~probattn.experiments.evaluation.evaluate.evaluate`.
    """
    function = functools.partial(run_job, options=options)
    results = run_in_workers(function, jobs, workers=workers) if workers > 1 else ((j, function(j)) for j in jobs)
    with contextlib.closing(results):
        for number, (job, result) in enumerate(results, 1):
            key, display = next(iter(displays(result.metrics).items()))
            value = f"{format_value(result.metrics[key], display.scale)} {unit(display.scale)}".strip()
            say(f"{number} of {len(jobs)}: {job.folder}, test {display.title} {value}")
            yield job, result


def run_job(job: Job, *, options: Mapping[str, Any]) -> RunResult:
    """Train, or resume, and evaluate a run."""
    train.train(job.settings, job.folder, name=job.name, root=job.root, resume=True, progress=False)
    return evaluate(job.folder, root=job.root, **options).result


def _variants(names: Sequence[str], layers: Sequence[str]) -> Iterator[tuple[str, Settings]]:
    """Yield the presets with each layer: those of the family that have it, or else with another layer."""
    for name in names:
        base = preset(name)
        family = {name: base} | {key: PRESETS[key] for key in PRESETS if key.split("/")[0] == name.split("/")[0]}
        same = (base.data, base.network)
        for layer in layers or (base.layer.name,):
            alike = ((k, s) for k, s in family.items() if (s.data, s.network) == same and s.layer.name == layer)
            yield next(alike, None) or (name, with_layer(base, layer))


def _default_ood(dataset: Dataset) -> tuple[str, ...]:
    return default_names(dataset.name) if isinstance(dataset, ImageDataset) else ()


def _check_model(job: Job, dataset: Dataset) -> tuple[Supervised, Guide]:
    """Build the model of a run, and that of its warm start, and predict a few examples; return model and guide.

    Raises:
        SettingsError: its layer fails.
    """
    settings = job.settings
    try:
        model, guide = build(settings, dataset)
        if settings.warm_start:
            warm_start(model, build(settings.first_phase(), dataset)[0].state_dict())
        predict(model, guide, [dataset.sample(4, generator=generator(settings))], num_samples=1)
    except (SettingsError, CheckpointError, OSError):
        raise
    except Exception as error:  # of a layer of the user's own, of any type
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise SettingsError(f"{job.folder.parent}: the layer {settings.layer.name} fails, {reason}") from error
    return model, guide
