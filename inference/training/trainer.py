"""Training loop of one run: epochs, validation, early stopping, checkpoints and resuming."""

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probattn.functional.errors import NumericalError
from probattn.inference.distributed import (
    average_over_ranks,
    broadcast_result,
    gather_results,
    rank_batches,
    seed_per_rank,
    world,
)
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.training.optimizers import Optimizers
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Objective, Outcome, StepCoefficients, check_finite, train_step
from probattn.inference.training.validation import is_better, monitored, validate

if TYPE_CHECKING:
    from lightning_fabric import Fabric

COUNTERS = ("epoch", "step", "best_epoch", "best_value", "should_stop")


class Trainer:
    """State of a training run: modules, optimiser and counters, all of which a checkpoint holds.

    Attributes:
        model, guide, options: as for :func:`~probattn.inference.fit`.
        optimizer: of all parameters but those with natural gradients.
        epoch, step: numbers of epochs and of training steps done.
        best_epoch, best_value: best epoch so far, and its monitored metric.
        is_best: True if the present epoch is the best so far; a callback may set it in ``on_train_epoch_end``.
        should_stop: True ends the run after the present step; a callback may set it.

    Args:
        objective: loss of a batch, with model and guide.
        optimizers: of all parameters.
        train, valid: loaders.
        fabric: device and processes.
        folder: folder of the run, or None to keep the best weights in memory.
        callbacks: in the order in which they are called.
    """

    def __init__(
        self,
        objective: Objective,
        optimizers: Optimizers,
        train: Iterable,
        valid: Iterable | None,
        *,
        fabric: "Fabric",
        folder: Path | None,
        callbacks: Sequence[Any],
    ) -> None:
        self.model, self.guide, self.options = objective.loss.model, objective.loss.guide, objective.options
        self.epoch = self.step = self.best_epoch = 0
        self.best_value: float | None = None
        self.is_best = self.should_stop = False
        self.optimizer, self._optimizers = optimizers.optimizer, optimizers
        self._objective, self._fabric = objective, fabric
        self._train, self._valid, self._folder, self._callbacks = train, valid, folder, callbacks
        self._loaders = (train,) if valid is None else (train, valid)
        self._best_weights: tuple[dict, dict] | None = None

    def is_finished(self) -> bool:
        """Return True after the last epoch, or when early stopping or a callback has ended the run."""
        patience = self.options.patience
        out_of_patience = patience is not None and self.epoch - self.best_epoch >= patience
        return self.should_stop or self.epoch >= self.options.epochs or out_of_patience

    def run(self, log: RunLog, progress: TrainProgress) -> None:
        """Train until the last epoch, until early stopping, or until a callback stops the run."""
        if self.is_finished():
            return
        self._call("on_train_start")
        while not self.is_finished():
            started = time.perf_counter()
            self._call("on_train_epoch_start")
            metrics = {"train_loss": self._train_epoch(log, progress)}
            self.epoch += 1
            metrics |= self._validate()
            monitor, value = monitored(metrics, self.options.monitor)
            self.is_best = value is None or is_better(monitor, value, self.best_value)
            self._call("on_train_epoch_end", metrics)
            if self.is_best:
                self.best_epoch, self.best_value = self.epoch, value
            log.write("epoch", self.step, epoch=self.epoch, seconds=time.perf_counter() - started, **metrics)
            progress.epoch_done(self.epoch, metrics)
            is_due = self.epoch % self.options.checkpoint_every == 0 or self.is_finished()
            # best.pt first: a run that is killed in between repeats this epoch, and finds the same weights.
            if self.is_best and (is_due or value is not None):
                self._save_best()
            if is_due and self._folder is not None:
                self._save_last()
        self._call("on_train_end")

    def _train_epoch(self, log: RunLog, progress: TrainProgress) -> float:
        """Train on each batch once and return the mean loss in nats per example."""
        options, total, examples, number = self.options, 0.0, 0, 0
        sizes = {"num_data": self._objective.num_data, "steps_per_epoch": options.steps_per_epoch(len(self._train))}
        stream = rank_batches(self._train)
        while batches := list(islice(stream, options.accumulate_grad_batches)):
            coefficients, lr = StepCoefficients.at(self.step, options=options, **sizes), self._optimizers.lr()
            is_logged = self.step == 0 or (self.step + 1) % options.log_every == 0
            last = number + len(batches) - 1
            with self._located(f"batch {number}" if last == number else f"batches {number} to {last}"):
                outcome = train_step(
                    self._objective,
                    self._optimizers,
                    batches,
                    coefficients,
                    fabric=self._fabric,
                    with_terms=is_logged or len(self._callbacks) > 0,
                )
            self._optimizers.step_schedulers()
            self.step, number = self.step + 1, last + 1
            size = sum(batch.batch_size for batch in batches)
            total, examples = total + outcome.loss.item() * size, examples + size
            self._call("on_train_step_end", outcome)
            progress.step_done()
            if is_logged:
                values = {"loss": outcome.loss, **outcome.terms}
                values = average_over_ranks({name: value.item() for name, value in values.items()})
                log.write("step", self.step, epoch=self.epoch + 1, lr=lr, **values)
            if self._is_stopped():
                break
        with self._located(f"batch {number - 1}"):
            check_finite(self._objective, (), "the gradient was not finite")
        return average_over_ranks({"loss": total / examples})["loss"]

    def _is_stopped(self) -> bool:
        """Return True on all ranks if a callback of one has asked to stop."""
        if self._callbacks and world().size > 1:
            self.should_stop = any(gather_results(lambda: self.should_stop))
        return self.should_stop

    def _validate(self) -> dict[str, float]:
        """Return the validation metrics as ``valid/METRIC``, none without validation data."""
        if self._valid is None:
            return {}
        with self._located("validation"), torch.compiler.set_stance("force_eager"):
            values = validate(self.model, self.guide, self._valid, num_samples=self.options.num_samples)
        return {f"valid/{name}": value for name, value in values.items()}

    def _call(self, hook: str, *args: dict[str, float] | Outcome) -> None:
        """Call a method of each callback that has it."""
        for callback in self._callbacks:
            if hasattr(callback, hook):
                getattr(callback, hook)(self, *args)

    @contextmanager
    def _located(self, where: str) -> Iterator[None]:
        """Add the epoch and the place in it to numerical errors."""
        try:
            yield
        except NumericalError as error:
            raise NonFiniteError(f"epoch {self.epoch + (where != 'validation')}, {where}: {error}") from error

    def _save_last(self) -> None:
        """Write ``last.pt``, with everything that a run needs to resume exactly."""
        state = {name: getattr(self, name) for name in COUNTERS} | {
            "options": asdict(self.options),
            "num_data": self._objective.num_data,
            "optimizers": checkpoint.part_states(self._optimizers.parts()),
            "callbacks": checkpoint.part_states(self._callbacks),
            "random": gather_results(lambda: checkpoint.random_states(*self._loaders)),
        }
        broadcast_result(lambda: checkpoint.save(self._folder / "last.pt", self.model, self.guide, **state))

    def _save_best(self) -> None:
        """Keep the weights of this epoch, in ``best.pt`` or in memory."""
        if self._folder is None:
            self._best_weights = copy.deepcopy((self.model.state_dict(), self.guide.state_dict()))
            return
        best, path = {"epoch": self.best_epoch, "value": self.best_value}, self._folder / "best.pt"
        broadcast_result(lambda: checkpoint.save(path, self.model, self.guide, **best))

    def load_best(self) -> None:
        """Load the weights of the best epoch into model and guide.

        Raises:
            CheckpointError: ``best.pt`` is missing or damaged.
        """
        if self._folder is not None:
            checkpoint.load(self._folder / "best.pt", self.model, self.guide)
        elif self._best_weights is not None:
            for part, weights in zip((self.model, self.guide), self._best_weights, strict=True):
                part.load_state_dict(weights)

    def resume(self) -> None:
        """Restore the state at the end of the last epoch in ``last.pt``.

        With another number of ranks than before, the run sees the same batches, but draws other samples.

        Raises:
            CheckpointError: a damaged checkpoint, or one of other options, optimisers, loaders or another architecture.
        """
        path = self._folder / "last.pt"
        content, best = checkpoint.read(path), checkpoint.read(self._folder / "best.pt")["extra"]
        state = content["extra"]
        try:
            differences = self.options.differences(state["options"])
            if state["num_data"] != self._objective.num_data:
                differences.append(f"num_data: {state['num_data']} → {self._objective.num_data}")
            if differences:
                listed = "\n  ".join(differences)
                raise CheckpointError(f"{path} is of other options; take the same, or another folder:\n  {listed}")
            checkpoint.restore(content, self.model, self.guide, path=path)
            checkpoint.load_part_states(self._optimizers.parts(), state["optimizers"])
            checkpoint.load_part_states(self._callbacks, state["callbacks"])
            for name in COUNTERS:
                setattr(self, name, state[name])
            if best["epoch"] <= self.epoch:  # else the run was killed before last.pt, and finds that epoch again
                self.best_epoch, self.best_value = best["epoch"], best["value"]
            same = len(state["random"]) == world().size
            checkpoint.set_random_states(state["random"][world().rank if same else 0], *self._loaders)
            if not same:
                torch.manual_seed(int(torch.randint(2**62, ())))
                seed_per_rank()
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path} is of another run, or damaged: {error!r}") from error
