"""Training loop of one run: epochs, validation, early stopping and resuming."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.inference.distributed import random_state
from probattn.inference.distributed.batch_sharding import shard
from probattn.inference.distributed.collectives import average_over_ranks, gather_results, make_fabric, world
from probattn.inference.io import checkpoint
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.training.callbacks import Callbacks
from probattn.inference.training.fingerprint import Fingerprint, fingerprint
from probattn.inference.training.inexact import find_reasons
from probattn.inference.training.objective import StepCoefficients, make_objective
from probattn.inference.training.optimizers import OptimizerFactory, SchedulerFactory, make_optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.probe import probe
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_checkpoints import RunCheckpoints
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Step
from probattn.inference.training.step_batches import step_batches
from probattn.inference.training.validation import is_better, monitored, validate


class Trainer:
    """State of a training run: modules, optimiser and counters, all of which a checkpoint holds.

    Attributes:
        model, guide, options: as for :func:`~probattn.inference.fit`.
        epoch, step: numbers of epochs and of training steps done.
        best_epoch, best_value: best epoch so far, and its monitored metric.
        is_best: True if the present epoch is the best so far; a callback may set it.
        should_stop: True ends the run after the present step; a callback may set it.

    Args:
        model, guide, train, valid, options, optimizer, scheduler, callbacks: as for :func:`~probattn.inference.fit`.
        folder: folder of the run, or None to keep the best weights in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        train: Iterable,
        valid: Iterable | None,
        *,
        options: TrainOptions,
        folder: Path | None,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        callbacks: Iterable[Any] = (),
    ) -> None:
        self.model, self.guide, self.train, self.valid = model, guide, train, valid
        self.options, self.callbacks = options, Callbacks(tuple(callbacks))
        self.epoch = self.step = self.best_epoch = 0
        self.value: float | None = None
        self.best_value: float | None = None
        self.is_best = self.should_stop = False
        self._start = random_state.capture(())
        self._fabric = make_fabric(options.accelerator, options.devices)
        self.checkpoints = RunCheckpoints(folder, model, guide)
        self._batches, self._steps_per_epoch = shard(train), options.steps_per_epoch(len(train))
        self._loaders = {"train": train} | ({} if valid is None else {"valid": valid})
        self._fingerprint: Fingerprint | None = None
        objective = make_objective(model, guide, options=options, fabric=self._fabric, train=train)
        self._optimizers = make_optimizers(
            model,
            guide,
            options=options,
            num_data=objective.num_data,
            steps_per_epoch=self._steps_per_epoch,
            optimizer=optimizer,
            scheduler=scheduler,
        )
        self._train_step = Step(
            objective,
            self._optimizers,
            backward=self._fabric.backward,
            no_sync=partial(self._fabric.no_backward_sync, objective.module),
            clip_norm=options.clip_norm,
            parts={"model": model, "guide": guide},
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimiser of all parameters but those with natural gradients."""
        return self._optimizers.optimizer

    @property
    def device(self) -> torch.device:
        """Device of the run."""
        return self._fabric.device

    def take_fingerprint(self) -> list[str]:
        """Take the fingerprint of the run and return the reasons for which the run may not resume exactly."""
        probes = {name: probe(loader) for name, loader in self._loaders.items()}
        self._fingerprint = fingerprint(self.model, self.guide, probes, device=self._fabric.device)
        return find_reasons(probes)

    def resume(self) -> list[str]:
        """Restore the state at the end of the last finished epoch from ``last.pt``, after the fingerprint was taken.

        Returns:
            Differences of the environment, for which the resumed run may differ from one that was not interrupted.

        Raises:
            CheckpointError: a damaged checkpoint, one of other options, settings, data or another architecture, or lost
                weights of the best epoch.
        """
        path = self.checkpoints.folder / "last.pt"
        content, environment = self.checkpoints.read_last(
            options=self.options,
            recipe=self._optimizers.recipe,
            callbacks=self.callbacks.names(),
            fingerprint=self._fingerprint,
        )
        state = content["extra"]
        best = self.checkpoints.best_epoch(state)
        with checkpoint.refuse_wrong_types(path):
            self._load_state(state)
        checkpoint.restore(content, self.model, self.guide, path=path)
        if best is None:
            self.checkpoints.keep_best(epoch=self.epoch, value=self.value)
        else:
            self.best_epoch, self.best_value = best
        return environment

    def run(self, log: RunLog, progress: TrainProgress) -> None:
        """Train until the last epoch, until early stopping, or until a callback stops the run."""
        if self.is_finished():
            return
        self.callbacks.call("on_train_start", self)
        while not self.is_finished():
            started = time.perf_counter()
            self.callbacks.call("on_train_epoch_start", self)
            values = {"train_loss": self._train_epoch(log, progress)}
            self.epoch += 1
            values |= self._validate()
            self._compare_with_best(values)
            self.callbacks.call("on_train_epoch_end", self, values)
            if self.is_best:
                self.best_epoch, self.best_value = self.epoch, self.value
            log.write("epoch", self.step, epoch=self.epoch, seconds=time.perf_counter() - started, **values)
            progress.epoch_done(self.epoch, values)
            is_turn = self.epoch % self.options.checkpoint_every == 0 or self.is_finished()
            due = is_turn or (self.is_best and self.value is not None)
            if self.checkpoints.folder is not None and due:
                self.checkpoints.save_last(self._state(since=self._start))
            if self.is_best and due:
                self.checkpoints.keep_best(epoch=self.epoch, value=self.value)
        self.callbacks.call("on_train_end", self)

    def is_finished(self) -> bool:
        """Return True after the last epoch, or when early stopping or a callback has ended the run."""
        patience = self.options.patience
        out_of_patience = patience is not None and self.epoch - self.best_epoch >= patience
        return self.should_stop or self.epoch >= self.options.epochs or out_of_patience

    def _train_epoch(self, log: RunLog, progress: TrainProgress) -> float:
        """Train on each batch once and return the mean loss in nats per example."""
        total, examples = 0.0, 0
        sizes = {"steps_per_epoch": self._steps_per_epoch, "num_data": self._train_step.objective.num_data}
        for batches in step_batches(self._batches, self.options.accumulate_grad_batches):
            coefficients = StepCoefficients.at(self.step, options=self.options, **sizes)
            lr = self._optimizers.lr()
            with self._locate_errors(str(batches)):
                tensors = [self._fabric.to_device(each) for each in batches.tensors]
                outcome = self._train_step(tensors, coefficients, batches.loss_weights)
            self._optimizers.step_schedulers()
            self.step += 1
            total, examples = total + outcome.loss.item() * batches.examples, examples + batches.examples
            self.callbacks.call("on_train_step_end", self, outcome)
            progress.step_done()
            if self.step == 1 or self.step % self.options.log_every == 0:
                values = average_over_ranks({"loss": outcome.loss.item(), **_numbers(outcome.terms)})
                log.write("step", self.step, epoch=self.epoch + 1, loss=values.pop("loss"), lr=lr, **values)
            if self._is_stopped():
                break
        with self._locate_errors(f"batch {len(self.train) - 1}"):
            self._train_step.refuse_non_finite((), "the gradient was not finite")
        return average_over_ranks({"loss": total / examples})["loss"]

    def _is_stopped(self) -> bool:
        """Return True on all ranks if a callback of one has asked to stop."""
        if len(self.callbacks) and world().size > 1:
            self.should_stop = any(gather_results(lambda: self.should_stop))
        return self.should_stop

    @contextmanager
    def _locate_errors(self, where: str) -> Iterator[None]:
        """Add the epoch and the place in it to a :class:`NonFiniteError`."""
        try:
            yield
        except NonFiniteError as error:
            raise NonFiniteError(f"epoch {self.epoch + 1}, {where}: {error}") from error

    def _validate(self) -> dict[str, float]:
        """Return the validation metrics as ``valid/METRIC``, none without validation data."""
        if self.valid is None:
            return {}
        try:
            with torch.compiler.set_stance("force_eager"):
                values = validate(self.model, self.guide, self.valid, num_samples=self.options.num_samples)
        except NumericalError as error:
            raise NonFiniteError(f"epoch {self.epoch}, validation: {error}") from error
        return {f"valid/{name}": value for name, value in values.items()}

    def _compare_with_best(self, values: dict[str, float]) -> None:
        """Set ``is_best`` to True if this epoch is the best so far, which each is without validation data."""
        monitor, self.value = monitored(values, self.options.monitor)
        self.is_best = self.value is None or is_better(monitor, self.value, self.best_value)

    def _state(self, *, since: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return everything but the weights that a run needs to resume exactly; ``since`` as for ``capture``."""
        taken = self._fingerprint
        return {
            "epoch": self.epoch,
            "step": self.step,
            "value": self.value,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value,
            "should_stop": bool(self.should_stop),
            **self._optimizers.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "callback_names": self.callbacks.names(),
            "options": asdict(self.options),
            "random": random_state.capture_all_ranks(self._loaders, since=since),
            "fingerprint": taken and taken.after_training(self.model, self.guide)._asdict(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self.epoch, self.step, self.value = state["epoch"], state["step"], state["value"]
        self.best_epoch, self.best_value = state["best_epoch"], state["best_value"]
        self.should_stop = state["should_stop"]
        self._optimizers.load_state_dict(state)
        self.callbacks.load_state_dict(state["callbacks"])
        random_state.restore_own_rank(state["random"], self._loaders)


def _numbers(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in terms.items()}
