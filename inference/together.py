"""Runs that are trained in step: losses and gradients of all at once, everything else by each itself."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from probattn.inference import rng
from probattn.inference.diagnosis import NonFiniteError, first_line
from probattn.inference.ledger import Ledger
from probattn.inference.logs import RunLog
from probattn.inference.members_step import MembersStep
from probattn.inference.progress import TrainProgress
from probattn.inference.trainer import Trainer


class Run(NamedTuple):
    """A member's number, its run, and what the run tells."""

    number: int
    trainer: Trainer
    log: RunLog
    bar: TrainProgress


class Together:
    """Trains runs of the same options epoch by epoch: always those that are furthest behind, together.

    Args:
        runs: alike as :func:`~probattn.inference.alike.find_obstacle` finds them.
        say: is told if it turns out that they cannot be trained together.
    """

    def __init__(self, runs: Sequence[Run], *, say: Callable[[str], None]) -> None:
        self.runs, self.say = runs, say
        self.step: MembersStep | None = None
        self.apart = False

    def run(self) -> None:
        """Trains each to its last epoch, or until its patience ends."""
        while going := [run for run in self.runs if run.trainer.is_going()]:
            epoch = min(run.trainer.epoch for run in going)
            now = [run for run in going if run.trainer.epoch == epoch]
            if len(now) > 1 and not self.apart:
                self._epoch(now)
            else:
                for run in now:
                    self._epoch_alone(run)

    def _epoch_alone(self, run: Run) -> None:
        started = time.perf_counter()
        with named(run.number, run.trainer):
            run.trainer.end_epoch(run.trainer.train_epoch(run.log, run.bar), run.log, run.bar, started=started)

    def _epoch(self, runs: Sequence[Run]) -> None:
        """An epoch of all these: anew for whom a step failed, and of no effect where a step cannot be made together."""
        started, trainers = time.perf_counter(), [run.trainer for run in runs]
        if self.step is None or self.step.trainers != trainers:
            self.step = MembersStep(trainers)
        before = [trainer.snapshot() for trainer in trainers]
        try:
            ledgers = self._pass(runs)
        except RuntimeError as error:
            self.apart, self.step = True, None
            self.say(f"one member after another from epoch {trainers[0].epoch + 1} on: {first_line(error)}")
            for run, state in zip(runs, before, strict=True):
                _roll_back(run, state)
            return
        seconds, failed = time.perf_counter() - started, self.step.has_failed()
        for run, state, ledger, fails in zip(runs, before, ledgers, failed, strict=True):
            with named(run.number, run.trainer):
                if fails or run.trainer.is_broken():
                    loss = self._anew(run, state)
                else:
                    ledger.write()
                    loss = ledger.mean()
                run.trainer.end_epoch(loss, run.log, run.bar, started=time.perf_counter() - seconds)

    def _pass(self, runs: Sequence[Run]) -> list[Ledger]:
        ledgers = [run.trainer.begin_pass(run.log) for run in runs]
        for asked in zip(*(run.trainer.todo() for run in runs), strict=True):
            weights = asked[0][1]
            outcomes = self.step([batch for batch, _, _ in asked], weights)
            for run, ledger, outcome, (_, _, examples) in zip(runs, ledgers, outcomes, asked, strict=True):
                run.trainer.count(outcome, ledger, run.bar, lr=weights.lr, examples=examples)
        return ledgers

    def _anew(self, run: Run, before: dict[str, Any]) -> float:
        """One member's epoch again, behind which random numbers go on as if it had not been."""
        states = rng.capture(None)
        _roll_back(run, before)
        self.step = None  # the optimiser's state lies elsewhere now
        loss = run.trainer.train_epoch(run.log, run.bar)
        rng.restore(states, None)
        return loss


@contextmanager
def named(number: int, trainer: Trainer) -> Iterator[None]:
    """Errors inside tell the member."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"member {number} (seed {trainer.settings.seed}): {error}") from error


def _roll_back(run: Run, before: dict[str, Any]) -> None:
    run.trainer.roll_back(before)
    run.bar.back_to(run.trainer.epoch)
