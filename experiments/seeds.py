"""One run with several seeds: trained together where that is faster."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev

from probattn.experiments import runs
from probattn.experiments.settings import Settings, SettingsError
from probattn.inference import History, Member, fit_members
from probattn.inference.distributed import world

WIDEST = 64
"""The widest network whose seeds are trained together on a CPU."""


def seed_runs(settings: Settings, out: Path, *, seeds: int) -> dict[Path, Settings]:
    """The runs of the seeds 0, 1, … by their folders ``OUT/seed-0``, …."""
    return {out / f"seed-{seed}": replace(settings, train=replace(settings.train, seed=seed)) for seed in range(seeds)}


def check_seedless(changes: Sequence[str]) -> None:
    """Refuses changes of settings that fix the seed.

    Raises:
        SettingsError: naming what to give in its place.
    """
    if any(change.startswith("train.seed=") for change in changes):
        raise SettingsError("the seeds are 0, 1, …: give --seeds N in place of train.seed")


def train_seeds(
    settings: Settings,
    out: Path,
    *,
    seeds: int,
    name: str,
    root: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> list[History]:
    """Trains a run with each of the seeds 0, 1, …, in folders of ordinary runs that can also go on alone.

    Where :func:`are_faster_together` their steps are computed together, all warm starts first, which changes posterior
    draws and dropout (:func:`~probattn.inference.fit_members`); else each is trained as by
    :func:`~probattn.experiments.runs.train`.

    Args:
        settings: of the run, whose seed does not count.
        out: gets the folders ``seed-0``, ….
        seeds: how many.
        name, root, resume, say: as for ``train``.
        progress: show the progress; of those that are trained together, the first one's.

    Returns:
        What happened to each.

    Raises:
        FileExistsError: one of the folders holds a run and ``resume`` is False, or other files.
        NonFiniteError: a NaN or Inf, with the member's number and seed where they are trained together.
        Exception: as for ``train``.
    """
    todo = seed_runs(settings, out, seeds=seeds)
    for folder, each in todo.items():
        runs.check(each, folder, resume=resume)
    common = {"resume": resume, "progress": progress, "say": say}
    if are_faster_together(settings) and seeds > 1:
        return _together(todo, root=root, name=name, **common)
    histories = []
    for folder, each in todo.items():
        say(f"seed {each.train.seed}")
        histories.append(runs.train(each, folder, name=name, root=root, **common))
    return histories


def summary(histories: Sequence[History], settings: Settings) -> str:
    """Best epoch and value of each seed, and their mean ± standard deviation.

    Raises:
        SettingsError: a seed of which no epoch had the monitored metric.
    """
    monitor, values = settings.train.monitor or "accuracy", [history.best_value for history in histories]
    if None in values:
        raise SettingsError(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    lines = [
        f"seed {seed}: best epoch {history.best_epoch} of {len(history.epochs)}, valid {monitor} {value:.4f}"
        for seed, (history, value) in enumerate(zip(histories, values, strict=True))
    ]
    if len(values) > 1:
        lines.append(f"valid {monitor} {mean(values):.4f} ± {stdev(values):.4f} over {len(values)} seeds")
    return "\n".join(lines)


def are_faster_together(settings: Settings) -> bool:
    """Whether seeds are trained faster together than one after another, in one process."""
    on_gpu = runs.find_device(settings.train.accelerator) == "cuda"
    return world().size == 1 and (on_gpu or settings.network.dim <= WIDEST)


def _together(
    todo: dict[Path, Settings],
    *,
    root: Path | None,
    name: str,
    resume: bool,
    progress: bool,
    say: Callable[[str], None],
) -> list[History]:
    dataset = runs.load_data(next(iter(todo.values())), root)
    with ExitStack() as held:
        members = [
            runs.claimed(each, folder, dataset, name=name, resume=resume, held=held) for folder, each in todo.items()
        ]
        fresh = [run for run in members if run.is_fresh and run.settings.warm_start is not None]
        if fresh:
            first = fresh[0].settings.first_phase()
            say(f"warm start of {len(fresh)} seeds together: {first.layer.name} attention, {first.train.epochs} epochs")
            _fit([_warm_up(run) for run in fresh], resume=True, progress=progress, say=say)
        started = []
        for run in members:
            best = run.out / "warm-start" / "best.pt" if run.settings.warm_start is not None else None
            started.append(runs.started(run, best=best, say=lambda text: None) if run.is_fresh else run)
        settings = started[0].settings
        say(f"{len(started)} seeds together: {settings.layer.name} attention, {settings.train.epochs} epochs")
        return _fit(started, resume=resume, progress=progress, say=say)


def _warm_up(run: runs.Run) -> runs.Run:
    """The warm start of a run."""
    settings, out = run.settings.first_phase(), run.out / "warm-start"
    model, guide = runs.build(settings, run.dataset)
    batches = runs.loaders(settings, run.dataset, device=runs.find_device(settings.train.accelerator))
    return run._replace(settings=settings, out=out, model=model, guide=guide, batches=batches)


def _fit(todo: Sequence[runs.Run], *, resume: bool, progress: bool, say: Callable[[str], None]) -> list[History]:
    members = [
        Member(
            model=run.model,
            guide=run.guide,
            train=run.batches.train,
            valid=run.batches.valid,
            out=run.out,
            seed=run.settings.train.seed,
        )
        for run in todo
    ]
    options = {key: value for key, value in asdict(todo[0].settings.train).items() if key != "seed"}
    return fit_members(members, resume=resume, progress=progress, say=say, **options)
