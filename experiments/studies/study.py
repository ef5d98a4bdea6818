"""Studies: presets with several layers and seeds on any data, checked before the first training,
and resumable."""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from probattn.experiments.config.data import OwnDataSettings
from probattn.experiments.config.presets import PRESETS, preset, with_layer
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.eval_sets import eval_sets
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.runs import build, train
from probattn.experiments.runs.sources import load_data
from probattn.experiments.runs.workers import run_in_workers
from probattn.inference import predict, warm_start

# Methods of a study that names none.
CHEAP = ("temperature",)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of a study.

    Args:
        name: name of its preset.
        settings, folder: of the run.
        root: folder of the data sets.
        options: of its evaluation, see :func:`~probattn.experiments.evaluation.evaluate.evaluate`.
    """

    name: str
    settings: Settings
    folder: Path
    root: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def plan(
    names: Sequence[str],
    *,
    seeds: int,
    out: Path,
    epochs: int | None = None,
    layers: Sequence[str] = (),
    changes: Sequence[str] = (),
    data: Path | str | None = None,
    new_splits: bool = False,
) -> list[Job]:
    """Return the runs of a study: all presets and layers with the first seed, then with the next.

    Args:
        names: presets.
        seeds: number of runs of each.
        out: folder of the runs, ``PRESET/seed-SEED``, or ``PRESET/LAYER/seed-SEED`` for layers that
            no preset has.
        epochs: epochs of each run, warm start included; None takes the preset's.
        layers: layers of each preset, as presets of its family have them, or else as
            :func:`~probattn.experiments.config.presets.with_layer`; none takes the presets' own.
        changes: changed settings, ``key=value``; those of ``layers`` count for the layers that have
            them.
        data: a user's own data, or the folder of the data sets.
        new_splits: divide the data anew for each seed, by the same ``data.seed``; a test part of
            its own stays.

    Raises:
        SettingsError: an unknown preset or layer, changes that are invalid or set the seed, or new
            splits by a function that takes no seed.
        NotADirectoryError: ``data`` is no folder, for a preset that takes the folder of the data
            sets.
    """
    if any(change.startswith("train.seed=") for change in changes):
        raise SettingsError(
            "the seeds of a study are 0, 1, …: use --seeds N in place of train.seed"
        )
    variants = []
    for name in names:
        for layer in layers or [preset(name).layer.name]:
            variants.append(_with_layer(name, layer))
    for change in changes:
        if not any(_suits(change, settings) for _, settings in variants):
            raise SettingsError(
                f"none of the layers has {change}; `probattn presets NAME` lists all settings"
            )
    kinds = {}
    for name, settings in variants:
        suited = [change for change in changes if _suits(change, settings)]
        settings, root = settings.with_changes(suited, epochs=epochs).with_data(data)
        layer = settings.layer.name
        folder = out / name
        if layer != preset(name).layer.name:
            folder /= layer.replace(":", ".")
        if new_splits:
            _check_divided(settings)
        kinds[folder] = name, settings, root
    jobs = []
    for seed, folder in itertools.product(range(seeds), kinds):
        name, settings, root = kinds[folder]
        numbers = [f"train.seed={seed}"]
        if new_splits:
            numbers.append(f"data.seed={seed}")
        seeded = settings.with_changes(numbers)
        jobs.append(
            Job(
                name=name,
                settings=seeded,
                folder=folder / f"seed-{seed}",
                root=root,
            )
        )
    return jobs


def check(
    jobs: Sequence[Job],
    *,
    by: Sequence[str] | None = None,
    shift: bool = False,
    ood: Sequence[str] = (),
    severities: Sequence[int] = (1, 3, 5),
    **tests: Any,
) -> list[Job]:
    """Check everything that training and evaluation need: folders, data, layers, models, methods,
    test sets.

    Args:
        jobs: the runs.
        by: methods besides the posterior predictive; ``("all",)`` takes all that all models can,
            None temperature scaling, which costs next to nothing, of classes.
        shift: evaluate on corrupted images.
        ood: OOD image sets; ``default`` stands for those of the data set.
        severities, tests: ``severities`` and ``corruptions`` of the corrupted images.

    Returns:
        The runs with the options of their evaluation.

    Raises:
        SettingsError: something that does not suit; says what.
        DatasetError, FileExistsError: data that cannot be read; a folder of something else.
        Exception: that of a layer that fails.
    """
    datasets: dict[str, Dataset] = {}
    is_chosen = by is not None and list(by) != ["all"]
    if by is None:
        by = CHEAP
    elif not is_chosen:
        by = tuple(methods.METHODS)
    names: Sequence[str] = methods.check(by)[1:]
    for job in jobs:
        train.check(job.settings, job.folder, resume=True)
    one_of_each_kind = {job.folder.parent: job for job in jobs}.values()
    for job in one_of_each_kind:
        key = repr((job.settings.data, job.settings.network, job.root))
        if key not in datasets:
            datasets[key] = load_data(job.settings, job.root)
        dataset = datasets[key]
        if not is_chosen and not dataset.classes:
            names = ()
        names = _suited_methods(job, dataset, names, all_must_suit=is_chosen)
    by_digest = {dataset.test.digest: dataset.name for dataset in datasets.values()}
    if len(by_digest) > 1:
        different = " and ".join(by_digest.values())
        raise SettingsError(
            f"the presets have different test data, {different}: choose presets of one data set"
        )
    tests |= {"shift": shift, "ood": tuple(ood), "severities": severities}
    eval_sets(dataset, root=jobs[0].root, **tests)
    options = tests | {"by": tuple(names), "baselines": True}
    return [replace(job, options=options) for job in jobs]


def run_study(
    jobs: Sequence[Job],
    *,
    workers: int,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Train, or resume, and evaluate runs, several at a time; a stopped study keeps what is done.

    Args:
        jobs: the runs, as :func:`check` returns them.
        workers: number of processes, of one thread each; 1 runs all in this process.
        say: called with a message after each run.

    Raises:
        Exception: the first one of a run, whereupon the others stop until the study continues.
    """
    done = ((job, run_job(job)) for job in jobs)
    if workers > 1:
        done = run_in_workers(run_job, jobs, workers=workers)
    with contextlib.closing(done):
        for number, (_, folder) in enumerate(done, 1):
            say(f"{number} of {len(jobs)}: {folder}")


def run_job(job: Job) -> Path:
    """Train, or resume, and evaluate a run; return its folder."""
    train.train(
        job.settings,
        job.folder,
        name=job.name,
        root=job.root,
        resume=True,
        progress=False,
    )
    evaluate(
        job.folder,
        root=job.root,
        trust_code=job.settings.names(),
        **job.options,
    )
    return job.folder


def _with_layer(name: str, layer: str) -> tuple[str, Settings]:
    """Return a preset with a layer: that of the family that has it on the same data, or else one
    with another layer."""
    base = preset(name)
    family = name.partition("/")[0]
    for key, settings in [(name, base), *PRESETS.items()]:
        is_same_task = (settings.data, settings.network) == (base.data, base.network)
        if key.startswith(f"{family}/") and is_same_task and settings.layer.name == layer:
            return key, settings
    return name, with_layer(base, layer)


def _check_divided(settings: Settings) -> None:
    """Check that ``data.seed`` divides the data of a run; raise SettingsError if not."""
    reader = type(settings.data).constructor
    if reader is None or isinstance(settings.data, OwnDataSettings):
        return
    if "seed" not in inspect.signature(reader).parameters:
        raise SettingsError(
            f"--new-splits: {settings.data.name} has no parameter seed by which it divides its data"
        )


def _suits(change: str, settings: Settings) -> bool:
    """Return True if a change is not of the layer, or if the layer has the option."""
    names = {f"layer.{option.name}" for option in fields(cast(Any, settings.layer))}
    return not change.startswith("layer.") or change.partition("=")[0] in names


def _suited_methods(
    job: Job, dataset: Dataset, names: Sequence[str], *, all_must_suit: bool
) -> list[str]:
    """Build the model of a run, and that of its warm start, predict a few examples, and return the
    methods that suit.

    Raises:
        SettingsError: a method does not suit though all must.
        Exception: that of a layer that fails.
    """
    settings = job.settings
    model, guide = build.build(settings, dataset)
    if settings.warm_start:
        warm_start(model, build.build(settings.first_phase(), dataset)[0].state_dict())
    batch = dataset.sample(4, generator=build.generator(settings))
    predict(model, guide, [batch], num_samples=1)
    suited = []
    for name in names:
        with contextlib.nullcontext() if all_must_suit else contextlib.suppress(SettingsError):
            methods.check_model(name, model, guide, has_classes=bool(dataset.classes))
            suited.append(name)
    return suited
