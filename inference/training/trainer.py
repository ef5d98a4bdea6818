"""Training loop of one run: epochs, validation, early stopping, checkpoints and resuming."""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from probattn import NumericalError
from probattn.inference import distributed
from probattn.inference.batches import Loader
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.files import undamaged
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.random_states import random_states, set_random_states
from probattn.inference.training.callbacks import Callback
from probattn.inference.training.optimizers import Optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.progress import Progress
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Objective, Outcome, StepCoefficients, train_step
from probattn.inference.training.validation import is_better, monitored, validate


@dataclass(eq=False)
class RunState:
    """Progress of a run: the content of a checkpoint beside weights, optimisers and random numbers.

    Args:
        epoch, step: numbers of epochs and of training steps done.
        best_epoch, best_value: best epoch so far, and its monitored metric.
        should_stop: True ends the run after the present step; a callback may set it.

    Raises:
        ValueError: a value of another type, or a negative number of epochs or steps.
    """

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_value: float | None = None
    should_stop: bool = False

    def __post_init__(self) -> None:
        for field in fields(RunState):
            value = getattr(self, field.name)
            kind: Any = field.type
            if not isinstance(value, kind) or (kind is int and value < 0):
                raise ValueError(f"{field.name} is {value!r}")


STATE = tuple(field.name for field in fields(RunState))


@dataclass(eq=False, kw_only=True)
class Trainer(RunState):
    """A training run: its state, and the modules, optimiser and loaders that go with it.

    Attributes:
        model, guide, options: as for :func:`~probattn.inference.fit`.
        optimizer: of all parameters but those with natural gradients.
        steps_per_epoch: number of training steps of an epoch.
        is_best: True if the present epoch is the best so far; a callback may set it in
            ``on_train_epoch_end``.

    Args:
        objective: loss of a batch, with model and guide.
        optimizers: of all parameters.
        train, valid: loaders.
        folder: folder of the run, or None to keep the best weights in memory.
        callbacks: in the order in which they are called.
        notes: texts that ``best.pt`` keeps.
    """

    objective: Objective
    optimizers: Optimizers
    train: Loader
    valid: Loader | None
    folder: Path | None
    callbacks: Sequence[Callback]
    notes: Mapping[str, str]

    def __post_init__(self) -> None:
        self.model = self.objective.loss.model
        self.guide = self.objective.loss.guide
        self.options = self.objective.options
        self.optimizer = self.optimizers.optimizer
        self.steps_per_epoch = self.options.steps_per_epoch(len(self.train))
        self.is_best = False
        self._best_weights: dict[str, Any] = {}

    def is_finished(self) -> bool:
        """Return True after the last epoch, or when early stopping or a callback has ended the
        run."""
        patience = self.options.patience or math.inf
        is_stale = self.epoch - self.best_epoch >= patience
        return self.should_stop or is_stale or self.epoch >= self.options.epochs

    def run(self, log: RunLog, progress: Progress) -> None:
        """Train until the last epoch, until early stopping, or until a callback stops the run."""
        if self.is_finished():
            return
        self._call("on_train_start")
        while not self.is_finished():
            started = time.perf_counter()
            self._call("on_train_epoch_start")
            metrics = self._epoch_metrics(log, progress)
            self.epoch += 1
            monitor = monitored(self.options.monitor, metrics)
            value = None if self.valid is None else metrics[f"valid/{monitor}"]
            self.is_best = value is None or is_better(monitor, value, self.best_value)
            self._call("on_train_epoch_end", metrics)
            if self.is_best:
                self.best_epoch = self.epoch
                self.best_value = value
            seconds = time.perf_counter() - started
            log.write("epoch", self.step, epoch=self.epoch, seconds=seconds, **metrics)
            shown = ("train_loss", "valid/accuracy", f"valid/{monitor}")
            values = {name: metrics[name] for name in shown if name in metrics}
            progress.end_epoch(self.epoch, values, seconds=seconds)
            self._save()
        self._call("on_train_end")

    def _epoch_metrics(self, log: RunLog, progress: Progress) -> dict[str, float]:
        """Train for one epoch, and return ``train_loss`` and ``valid/METRIC``."""
        try:
            loss = self._train_epoch(log, progress)
            return {"train_loss": loss, **self._validate()}
        except NumericalError as error:
            place = f"epoch {self.epoch + 1}, after step {self.step}"
            raise NonFiniteError(f"{place}: {error}") from error

    def _save(self) -> None:
        """Keep the weights if they are the best, and write ``last.pt`` if that is due."""
        is_due = self.epoch % self.options.checkpoint_every == 0 or self.is_finished()
        # best.pt first: a run that is killed in between repeats this epoch, and finds the same
        # weights.
        if self.is_best and (is_due or self.valid is not None):
            self._save_best()
        if is_due and self.folder is not None:
            self._save_last(self.folder)

    def _train_epoch(self, log: RunLog, progress: Progress) -> float:
        """Train on each batch once and return the mean loss in nats per example."""
        options = self.options
        total = 0.0
        examples = 0
        stream = distributed.rank_batches(self.train)
        while batches := list(islice(stream, options.accumulate_grad_batches)):
            lr = self.optimizers.lr()
            is_logged = self.step == 0 or (self.step + 1) % options.log_every == 0
            coefficients = StepCoefficients.at(
                self.step,
                options=options,
                num_data=self.objective.num_data,
                steps_per_epoch=self.steps_per_epoch,
            )
            outcome = train_step(
                self.objective,
                self.optimizers,
                batches,
                coefficients,
                with_terms=is_logged or len(self.callbacks) > 0,
            )
            self.step += 1
            size = sum(batch.batch_size for batch in batches)
            total += outcome.loss.item() * size
            examples += size
            self._call("on_train_step_end", outcome)
            progress.end_step()
            if is_logged:
                tensors = {"loss": outcome.loss, **outcome.terms}
                values = {name: tensor.item() for name, tensor in tensors.items()}
                means = distributed.average_over_ranks(values)
                log.write("step", self.step, epoch=self.epoch + 1, lr=lr, **means)
            if self.callbacks:  # of which one, on one rank, may have asked to stop
                self.should_stop = any(distributed.gather_results(lambda: self.should_stop))
            if self.should_stop:
                break
        self.objective.check_finite((), "the gradient was not finite")
        return distributed.average_over_ranks({"loss": total / examples})["loss"]

    def _validate(self) -> dict[str, float]:
        """Return the validation metrics as ``valid/METRIC``, none without validation data."""
        if self.valid is None:
            return {}
        with torch.compiler.set_stance("force_eager"):
            values = validate(
                self.model, self.guide, self.valid, num_samples=self.options.num_samples
            )
        return {f"valid/{name}": value for name, value in values.items()}

    def _call(self, hook: str, *args: dict[str, float] | Outcome) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def _save_last(self, folder: Path) -> None:
        """Write ``last.pt``, with everything that a run needs to resume exactly."""
        states = distributed.gather_results(lambda: random_states(self.train, self.valid))
        extra = {
            **{name: getattr(self, name) for name in STATE},
            "options": asdict(self.options),
            "num_data": self.objective.num_data,
            "optimizers": checkpoint.part_states(self.optimizers.parts()),
            "callbacks": checkpoint.part_states(self.callbacks),
            "random": states,
        }
        self._write(folder / "last.pt", extra)

    def _save_best(self) -> None:
        """Keep the weights of this epoch, in ``best.pt`` or in memory."""
        if self.folder is None:
            self._best_weights = copy.deepcopy(checkpoint.weights(self.model, self.guide))
        else:
            extra = {**self.notes, "epoch": self.best_epoch, "value": self.best_value}
            self._write(self.folder / "best.pt", extra)

    def _write(self, path: Path, extra: dict[str, Any]) -> None:
        distributed.broadcast_result(lambda: checkpoint.save(path, self.model, self.guide, **extra))

    def load_best(self) -> None:
        """Load the weights of the best epoch into model and guide.

        Raises:
            CheckpointError: ``best.pt`` is missing or damaged.
        """
        if self.folder is not None:
            checkpoint.load(self.folder / "best.pt", self.model, self.guide)
        elif self._best_weights:
            checkpoint.restore(self._best_weights, self.model, self.guide, path="memory")

    def resume(self) -> None:
        """Restore the state at the end of the last epoch in ``last.pt``, if there is one.

        With another number of ranks than before, the run sees the same batches, but draws other
        samples.

        Raises:
            CheckpointError: a damaged checkpoint, or one of other options, optimisers, loaders or
                another architecture.
        """
        if self.folder is None:
            return
        path = self.folder / "last.pt"
        if not path.exists():
            return
        content = checkpoint.read(path)
        best = checkpoint.read(path.with_name("best.pt"))
        advice = "if it is of another run, choose another folder"
        with undamaged(path, CheckpointError, passing=CheckpointError, advice=advice):
            self._restore(content, best["extra"], path=path)

    def _restore(self, content: dict[str, Any], best: dict[str, Any], *, path: Path) -> None:
        extra = content["extra"]
        self._check_options(extra, path=path)
        run = {name: extra[name] for name in STATE}
        # Else the run was killed before last.pt, and finds that epoch again.
        if best["epoch"] <= run["epoch"]:
            run |= {"best_epoch": best["epoch"], "best_value": best["value"]}
        vars(self).update(asdict(RunState(**run)))
        checkpoint.restore(content, self.model, self.guide, path=path)
        checkpoint.load_part_states(self.optimizers.parts(), extra["optimizers"])
        checkpoint.load_part_states(self.callbacks, extra["callbacks"])
        world = distributed.world()
        has_same_ranks = len(extra["random"]) == world.size
        states = extra["random"][world.rank if has_same_ranks else 0]
        set_random_states(states, self.train, self.valid)
        if not has_same_ranks:
            distributed.seed_per_rank()

    def _check_options(self, extra: dict[str, Any], *, path: Path) -> None:
        """Refuse to go on with a run of other options, or another number of examples."""
        saved = TrainOptions(**extra["options"])
        then = asdict(saved) | {"num_data": extra["num_data"]}
        here = asdict(self.options) | {"num_data": self.objective.num_data}
        if self.options.continues(saved) and then["num_data"] == here["num_data"]:
            return
        changes = [name for name in then if then[name] != here[name]]
        listed = ", ".join(f"{name}: {then[name]!r} → {here[name]!r}" for name in changes)
        raise CheckpointError(
            f"{path} is of other options; take the same, or another folder: {listed}"
        )
