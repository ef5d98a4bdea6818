"""Training loop of one run: epochs, validation, early stopping, checkpoints and resuming."""

import copy
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from probattn.functional.errors import NumericalError
from probattn.inference import distributed
from probattn.inference.batches import Loader
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.programs import required
from probattn.inference.training.callbacks import Callback
from probattn.inference.training.optimizers import Optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Objective, Outcome, StepCoefficients, train_step
from probattn.inference.training.validation import is_better, validate

COUNTERS = {
    "epoch": int,
    "step": int,
    "best_epoch": int,
    "best_value": float | None,
    "should_stop": bool,
}
"""Attributes that a checkpoint holds, with their types."""


class Trainer:
    """State of a training run: modules, optimiser and counters, all of which a checkpoint holds.

    Attributes:
        model, guide, options: as for :func:`~probattn.inference.fit`.
        optimizer: of all parameters but those with natural gradients.
        epoch, step: numbers of epochs and of training steps done.
        best_epoch, best_value: best epoch so far, and its monitored metric.
        is_best: True if the present epoch is the best so far; a callback may set it in
            ``on_train_epoch_end``.
        should_stop: True ends the run after the present step; a callback may set it.

    Args:
        objective: loss of a batch, with model and guide.
        optimizers: of all parameters.
        train, valid: loaders.
        folder: folder of the run, or None to keep the best weights in memory.
        callbacks: in the order in which they are called.
        notes: texts that ``best.pt`` keeps.
    """

    def __init__(
        self,
        objective: Objective,
        optimizers: Optimizers,
        train: Loader,
        valid: Loader | None,
        *,
        folder: Path | None,
        callbacks: Iterable[Callback],
        notes: Mapping[str, str],
    ) -> None:
        self.model, self.guide, self.options = (
            objective.loss.model,
            objective.loss.guide,
            objective.options,
        )
        self.epoch = self.step = self.best_epoch = 0
        self.best_value: float | None = None
        self.is_best = self.should_stop = False
        self.optimizer, self._optimizers, self._objective = (
            optimizers.optimizer,
            optimizers,
            objective,
        )
        self._train, self._valid, self._folder, self._callbacks = (
            train,
            valid,
            folder,
            tuple(callbacks),
        )
        self._best_weights: dict[str, Any] | None = None
        self._notes = notes

    def is_finished(self) -> bool:
        """Return True after the last epoch, or when early stopping or a callback has ended the
        run."""
        epochs, patience = self.options.epochs, self.options.patience or math.inf
        return self.should_stop or self.epoch >= epochs or self.epoch - self.best_epoch >= patience

    def run(self, log: RunLog, progress: tqdm) -> None:
        """Train until the last epoch, until early stopping, or until a callback stops the run."""
        if self.is_finished():
            return
        self._call("on_train_start")
        while not self.is_finished():
            started = time.perf_counter()
            self._call("on_train_epoch_start")
            try:
                metrics = {"train_loss": self._train_epoch(log, progress)} | self._validate()
            except NumericalError as error:
                raise NonFiniteError(
                    f"epoch {self.epoch + 1}, after step {self.step}: {error}"
                ) from error
            self.epoch += 1
            monitor = self.options.monitor or ("nll" if "valid/accuracy" in metrics else "log_prob")
            value = None if self._valid is None else metrics[f"valid/{monitor}"]
            self.is_best = value is None or is_better(monitor, value, self.best_value)
            self._call("on_train_epoch_end", metrics)
            if self.is_best:
                self.best_epoch, self.best_value = self.epoch, value
            log.write(
                "epoch",
                self.step,
                epoch=self.epoch,
                seconds=time.perf_counter() - started,
                **metrics,
            )
            progress.set_description(f"epoch {self.epoch}/{self.options.epochs}", refresh=False)
            shown = ("train_loss", "valid/accuracy", f"valid/{monitor}")
            progress.set_postfix({name: metrics[name] for name in shown if name in metrics})
            is_due = self.epoch % self.options.checkpoint_every == 0 or self.is_finished()
            # best.pt first: a run that is killed in between repeats this epoch, and finds the same
            # weights.
            if self.is_best and (is_due or value is not None):
                self._save_best()
            if is_due and self._folder is not None:
                self._save_last()
        self._call("on_train_end")

    def _train_epoch(self, log: RunLog, progress: tqdm) -> float:
        """Train on each batch once and return the mean loss in nats per example."""
        options, total, examples = self.options, 0.0, 0
        sizes = {
            "num_data": self._objective.num_data,
            "steps_per_epoch": options.steps_per_epoch(len(self._train)),
        }
        stream = distributed.rank_batches(self._train)
        while batches := list(islice(stream, options.accumulate_grad_batches)):
            lr, is_logged = (
                self._optimizers.lr(),
                self.step == 0 or (self.step + 1) % options.log_every == 0,
            )
            coefficients = StepCoefficients.at(self.step, options=options, **sizes)
            with_terms = is_logged or len(self._callbacks) > 0
            outcome = train_step(
                self._objective, self._optimizers, batches, coefficients, with_terms=with_terms
            )
            self._optimizers.step_schedulers()
            self.step += 1
            size = sum(batch.batch_size for batch in batches)
            total, examples = total + outcome.loss.item() * size, examples + size
            self._call("on_train_step_end", outcome)
            progress.update()
            if is_logged:
                values = {
                    name: value.item()
                    for name, value in {"loss": outcome.loss, **outcome.terms}.items()
                }
                log.write(
                    "step",
                    self.step,
                    epoch=self.epoch + 1,
                    lr=lr,
                    **distributed.average_over_ranks(values),
                )
            if self._callbacks:  # of which one, on one rank, may have asked to stop
                self.should_stop = any(distributed.gather_results(lambda: self.should_stop))
            if self.should_stop:
                break
        self._objective.check_finite((), "the gradient was not finite")
        return distributed.average_over_ranks({"loss": total / examples})["loss"]

    def _validate(self) -> dict[str, float]:
        """Return the validation metrics as ``valid/METRIC``, none without validation data."""
        if self._valid is None:
            return {}
        with torch.compiler.set_stance("force_eager"):
            values = validate(
                self.model, self.guide, self._valid, num_samples=self.options.num_samples
            )
        return {f"valid/{name}": value for name, value in values.items()}

    def _call(self, hook: str, *args: dict[str, float] | Outcome) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self, *args)

    def _save_last(self) -> None:
        """Write ``last.pt``, with everything that a run needs to resume exactly."""
        state = {name: getattr(self, name) for name in COUNTERS} | {
            "options": asdict(self.options),
            "num_data": self._objective.num_data,
            "optimizers": checkpoint.part_states(self._optimizers.parts()),
            "callbacks": checkpoint.part_states(self._callbacks),
            "random": distributed.gather_results(
                lambda: checkpoint.random_states(self._train, self._valid)
            ),
        }
        path = required(self._folder) / "last.pt"
        distributed.broadcast_result(lambda: checkpoint.save(path, self.model, self.guide, **state))

    def _save_best(self) -> None:
        """Keep the weights of this epoch, in ``best.pt`` or in memory."""
        if self._folder is None:
            self._best_weights = copy.deepcopy(checkpoint.weights(self.model, self.guide))
            return
        best = {**self._notes, "epoch": self.best_epoch, "value": self.best_value}
        path = self._folder / "best.pt"
        distributed.broadcast_result(lambda: checkpoint.save(path, self.model, self.guide, **best))

    def load_best(self) -> None:
        """Load the weights of the best epoch into model and guide.

        Raises:
            CheckpointError: ``best.pt`` is missing or damaged.
        """
        if self._folder is not None:
            checkpoint.load(self._folder / "best.pt", self.model, self.guide)
        elif self._best_weights is not None:
            checkpoint.restore(self._best_weights, self.model, self.guide, path="memory")

    def resume(self) -> None:
        """Restore the state at the end of the last epoch in ``last.pt``.

        With another number of ranks than before, the run sees the same batches, but draws other
        samples.

        Raises:
            CheckpointError: a damaged checkpoint, or one of other options, optimisers, loaders or
                another architecture.
        """
        path = required(self._folder) / "last.pt"
        content, best = checkpoint.read(path), checkpoint.read(path.with_name("best.pt"))
        try:
            self._restore(content, best["extra"], path=path)
        except CheckpointError:
            raise
        except Exception as error:  # of many types: states of optimisers and random numbers
            raise CheckpointError(f"{path} is of another run, or damaged: {error!r}") from error

    def _restore(self, content: dict[str, Any], best: dict[str, Any], *, path: Path) -> None:
        state = content["extra"]
        saved, num_data = TrainOptions(**state["options"]), self._objective.num_data
        if not self.options.continues(saved) or state["num_data"] != num_data:
            then = asdict(saved) | {"num_data": state["num_data"]}
            here = asdict(self.options) | {"num_data": num_data}
            listed = ", ".join(
                f"{name}: {then[name]!r} → {here[name]!r}"
                for name in then
                if then[name] != here[name]
            )
            raise CheckpointError(
                f"{path} is of other options; take the same, or another folder: {listed}"
            )
        checkpoint.restore(content, self.model, self.guide, path=path)
        checkpoint.load_part_states(self._optimizers.parts(), state["optimizers"])
        checkpoint.load_part_states(self._callbacks, state["callbacks"])
        if (
            best["epoch"] <= state["epoch"]
        ):  # else the run was killed before last.pt, and finds that epoch again
            state |= {"best_epoch": best["epoch"], "best_value": best["value"]}
        for name, kind in COUNTERS.items():
            if not isinstance(state[name], kind) or (kind is int and state[name] < 0):
                raise ValueError(f"{name} is {state[name]!r}")
            setattr(self, name, state[name])
        has_same_ranks = len(state["random"]) == distributed.world().size
        states = state["random"][distributed.world().rank if has_same_ranks else 0]
        checkpoint.set_random_states(states, self._train, self._valid)
        if not has_same_ranks:
            distributed.seed_per_rank()
