"""Studies: presets with several layers and seeds on any data, checked before the first training, and resumable."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from probattn.experiments.config.data import OwnDataSettings
from probattn.experiments.config.presets import PRESETS, preset, with_layer
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.ood_sets import default_names
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.eval_sets import eval_sets
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.metric_display import displays, format_value, unit
from probattn.experiments.runs import train
from probattn.experiments.runs.build import Dataset, build, generator, load_data
from probattn.experiments.runs.seeds import check_seedless
from probattn.experiments.runs.workers import run_in_workers
from probattn.guides import Guide
from probattn.inference import CheckpointError, predict, warm_start
from probattn.models import Supervised

SEVERITIES = (1, 3, 5)
GENERATED = ("letters", "patches")
"""OOD images for data sets without default ones."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of a study.

    Args:
        name: name of its preset.
        settings: of the run.
        folder: of the run.
        root: folder of the data sets.
    """

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
    preset_changes: Mapping[str, Sequence[str]] | None = None,
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
        preset_changes: preset → further changes of its runs, which are in ``PRESET/KEY=VALUE,…/seed-SEED``.
        data: a user's own data, or the folder of the data sets.

    Raises:
        SettingsError: an unknown preset or layer, or changes that are invalid or set the seed.
    """
    check_seedless([*changes, *(change for further in (preset_changes or {}).values() for change in further)])
    of_layers = {change.partition("=")[0] for change in changes if change.startswith("layer.") and layers}
    jobs, used = {}, set()
    for name, settings in _variants(names, layers):
        options = {f"layer.{option.name}" for option in fields(settings.layer)}
        used |= options & of_layers
        further = tuple((preset_changes or {}).get(name, ()))
        applied = [change for change in changes if change.partition("=")[0] not in of_layers - options]
        is_own = data is not None and isinstance(settings.data, OwnDataSettings)
        if data is not None and not is_own and not Path(data).is_dir():
            raise NotADirectoryError(f"{data} is no folder of data sets: correct --data, or create it")
        settings = settings.with_changes([*([f"data.path={data}"] if is_own else []), *applied, *further])
        settings = settings if epochs is None else settings.with_total_epochs(epochs)
        layer = settings.layer.name
        parts = [] if layer == preset(name).layer.name else [layer.replace(":", ".")]
        parts += [quote(",".join(further), safe="=,")] if further else []
        folder = out.joinpath(name, *parts)
        jobs[folder] = Job(name=name, settings=settings, folder=folder, root=None if is_own or not data else Path(data))
    if of_layers - used:
        raise SettingsError(f"none of the layers has {', '.join(of_layers - used)}; `probattn presets NAME` lists all")
    return [
        replace(job, folder=folder / f"seed-{seed}", settings=job.settings.with_changes([f"train.seed={seed}"]))
        for seed in range(seeds)
        for folder, job in jobs.items()
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
    names, tests, datasets, options = methods.check(by or ())[1:], {}, {}, {}
    for job in jobs:
        train.check(job.settings, job.folder, resume=True)
    for job in {job.folder.parent: job for job in jobs}.values():
        settings, key = job.settings, repr((job.settings.data, job.settings.network, job.root))
        if key not in datasets:
            datasets[key] = load_data(settings, job.root)
        dataset = datasets[key]
        tests[dataset.test.digest] = job
        if by is None and not options:
            names = methods.check(methods.DEFAULT if dataset.classes else ())[1:]
        images = isinstance(dataset, ImageDataset)
        shift, ood = images if shift is None else shift, _ood(dataset) if ood is None else ood
        options = {"shift": shift, "ood": tuple(ood), **corrupted}
        eval_sets(dataset, root=job.root, **options)
        parts, has_classes = _check_model(job, dataset), bool(dataset.classes)
        for name in names:
            try:
                methods.check_model(name, *parts, has_classes=has_classes, kl_weight=settings.train.kl_weight)
            except SettingsError:
                if by is not None:
                    raise
                names = [other for other in names if other != name]
    if len(tests) > 1:
        raise SettingsError(f"{' and '.join(job.name for job in tests.values())} have other test data: study one only")
    return options | {"by": tuple(names)}


def run_study(
    jobs: Sequence[Job],
    *,
    by: Sequence[str] | None = None,
    shift: bool | None = None,
    ood: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    workers: int,
    say: Callable[[str], None] = lambda text: None,
    **corrupted: Sequence[str],
) -> None:
    """Check, train and evaluate the runs, several at a time; a stopped study keeps what is done.

    Args:
        jobs, by, shift, ood: as for :func:`check`.
        severities, corrupted: severities and ``corruptions`` of ``shift``.
        workers: number of processes, of one thread each; 1 runs all in this process.
        say: called with a message after each run.

    Raises:
        Exception: as for :func:`check`; the first one of a run, whereupon the others stop until the study continues.
    """
    options = check(jobs, by=by, shift=shift, ood=ood, severities=severities, **corrupted)
    with contextlib.closing(finished(functools.partial(run_job, options=options), jobs, workers)) as results:
        for number, (job, metrics) in enumerate(results, 1):
            key, display = next(iter(displays(metrics).items()))
            value = f"{format_value(metrics[key], display.scale)} {unit(display.scale)}".strip()
            say(f"{number} of {len(jobs)}: {job.folder}, test {display.title} {value}")


def run_job(job: Job, *, options: Mapping[str, Any]) -> dict[str, float]:
    """Train, or resume, and evaluate a run; return its metrics on the test data."""
    train.train(job.settings, job.folder, name=job.name, root=job.root, resume=True, progress=False)
    return evaluate(job.folder, root=job.root, convergence=False, **options).result.metrics


def finished(function: Callable, jobs: Sequence[Job], workers: int) -> Iterator:
    """Yield each job with its result when it finishes, from several processes or from this one."""
    if workers > 1:
        yield from run_in_workers(function, jobs, workers=workers)
        return
    for job in jobs:
        yield job, function(job)


def _variants(names: Sequence[str], layers: Sequence[str]) -> Iterator[tuple[str, Settings]]:
    """Yield the presets with each layer: those of the family that have it, or else with another layer."""
    for name in names:
        base = preset(name)
        family = [other for other in PRESETS if other.partition("/")[0] == name.partition("/")[0]]
        for layer in layers or (base.layer.name,):
            alike = [
                other
                for other in (name, *family)
                if (PRESETS[other].data, PRESETS[other].network) == (base.data, base.network)
                and PRESETS[other].layer.name == layer
            ]
            yield (alike[0], PRESETS[alike[0]]) if alike else (name, with_layer(base, layer))


def _ood(dataset: Dataset) -> tuple[str, ...]:
    """Return the OOD sets that suit a data set by default."""
    if not isinstance(dataset, ImageDataset):
        return ()
    try:
        return default_names(dataset.name)
    except ValueError:
        return GENERATED


def _check_model(job: Job, dataset: Dataset) -> tuple[Supervised, Guide]:
    """Build the model of a run, and that of its warm start, and predict a few examples; return model and guide.

    Raises:
        SettingsError: its layer fails.
    """
    settings = job.settings
    try:
        model, guide = build(settings, dataset)
        for phase in [settings.first_phase()] if settings.warm_start else []:
            warm_start(model, build(phase, dataset)[0].state_dict())
        predict(model, guide, [dataset.sample(4, generator=generator(settings))], num_samples=1)
    except (SettingsError, CheckpointError, OSError):
        raise
    except Exception as error:  # of a layer of the user's own, of any type
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = f"{kind}{str(error).partition(chr(10))[0]}"
        raise SettingsError(f"{job.folder.parent}: the layer {settings.layer.name} fails, {reason}") from error
    return model, guide
