"""Members of an ensemble, or seeds of a sweep: runs of their own whose steps are computed together."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from torch import nn

from probattn.inference import rng
from probattn.inference.alike import find_obstacle
from probattn.inference.options import TrainOptions
from probattn.inference.together import Run, Together, named
from probattn.inference.trainer import Trainer
from probattn.inference.training import History, begin, finish, history, open_log, show


@dataclass(frozen=True, eq=False, kw_only=True)
class Member:
    """What :func:`~probattn.inference.fit` takes of one run.

    Args:
        model, guide, train, valid, out: as for ``fit``; no two members share a model or a folder.
        seed: as for :class:`~probattn.inference.TrainOptions`.
    """

    model: nn.Module
    guide: nn.Module
    train: Iterable
    valid: Iterable | None = None
    out: str | Path | None = None
    seed: int | None = 0


def fit_members(
    members: Sequence[Member],
    *,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> list[History]:
    """Trains each member as :func:`~probattn.inference.fit` does, with the losses and gradients of all in one step.

    Each is an ordinary run, with its own optimiser, folder, log, validation and checkpoints, which can also go on
    alone. Data order and weights at the start are those of the run alone. Posterior draws and dropout are not: one
    generator, that of the last member's seed, serves all. An epoch in which a member's step fails is made anew for that
    member, step by step, so that errors are named and jitter grows as they do alone.

    Members that cannot be trained together, since there are several processes, blocks are compiled, networks have
    buffers, batches differ in shape, or ``vmap`` cannot map them, are trained one after another, each exactly as alone.

    Args:
        members: what differs.
        resume: go on from each member's ``last.pt``, where it has one: those that are behind first, until all stand at
            the same epoch. Where they stand so, the run goes on exactly.
        progress: show the first member's progress.
        say: is told why members are trained one after another.
        options: of :class:`~probattn.inference.TrainOptions`, the same for all, without ``seed``.

    Returns:
        What happened to each.

    Raises:
        ValueError: no members, or two with one model or folder, and whatever ``fit`` raises.
        NonFiniteError: a NaN or Inf, with the number and seed of the member.
    """
    _check(members)
    with ExitStack() as held:
        trainers, states = [], []
        for member in members:
            settings = TrainOptions(**options, seed=member.seed)
            parts = (member.model, member.guide, member.train, member.valid)
            trainers.append(begin(*parts, settings=settings, out=member.out, resume=resume, held=held))
            states.append(rng.capture(None))
        obstacle = find_obstacle([trainer for trainer in trainers if trainer.is_going()])
        if obstacle is not None:
            say(f"one member after another: {obstacle}")
            return [_finish(*each, progress=progress) for each in zip(count(), trainers, states)]
        latest = max(range(len(trainers)), key=lambda number: (trainers[number].epoch, number))
        rng.restore(states[latest], None)  # as it was when the last member was begun, or saved
        runs = []
        for number, trainer in enumerate(trainers):
            log, bar = open_log(trainer), show(trainer, shown=progress and number == 0)
            runs.append(Run(number, trainer, held.enter_context(log), held.enter_context(bar)))
        Together(runs, say=say).run()
        return [history(run.trainer, run.log) for run in runs]


def _finish(number: int, trainer: Trainer, states: dict[str, Any], *, progress: bool) -> History:
    rng.restore(states, None)
    with named(number, trainer):
        return finish(trainer, progress=progress)


def _check(members: Sequence[Member]) -> None:
    if not members:
        raise ValueError("there are no members to train")
    folders = [Path(member.out).resolve() for member in members if member.out is not None]
    if len({id(member.model) for member in members}) < len(members) or len(set(folders)) < len(folders):
        raise ValueError("each member needs a model and a folder of its own")
