"""One training run: modules, optimiser and counters, which together are what a checkpoint holds."""

import copy
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probattn.functional.errors import NumericalError
from probattn.inference.distributed import random_state
from probattn.inference.distributed.batch_sharding import shard
from probattn.inference.distributed.collectives import broadcast_result, gather_results, make_fabric
from probattn.inference.elbo import ELBOS
from probattn.inference.io import checkpoint
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.training.compile_blocks import compile_blocks
from probattn.inference.training.cuda_graph import CUDAGraphStep
from probattn.inference.training.epoch_log import EpochLog
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.parameter_groups import parameter_groups
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Outcome, Step
from probattn.inference.training.validation import is_better, validate
from probattn.programs import attribute


class Trainer:
    """The state of a run behind :func:`~probattn.inference.fit`, whose arguments these are."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        train: Iterable,
        valid: Iterable | None,
        *,
        settings: TrainOptions,
        folder: Path | None,
    ) -> None:
        self.model, self.guide, self.train, self.valid = model, guide, train, valid
        self.settings, self.folder = settings, folder
        self.epoch = self.step = self.best_epoch = 0
        self.best_value: float | None = None
        self.best_weights: dict[str, dict] = {}
        self.fabric = make_fabric(settings.accelerator, settings.devices)
        self.batches = shard(train)
        self.vectorize = settings.vectorize
        if self.vectorize is None:
            self.vectorize = broadcasts(model, guide, lambda: self.fabric.to_device(_peek(train)))
        elbo = ELBOS[settings.elbo](num_particles=1 if self.vectorize else settings.num_particles)
        if settings.compile:
            compile_blocks(model)
        self.module = self.fabric.setup_module(elbo(model, guide))
        self.optimizer = self._adam()
        num_data = attribute(model, "num_data")
        objective = Objective(self.module, elbo, options=settings, num_data=num_data, vectorize=self.vectorize)
        self.eager = Step(
            objective,
            self.optimizer,
            backward=self.fabric.backward,
            clip_norm=settings.clip_norm,
            parts={"model": model, "guide": guide},
        )
        self.captured = self._captured()

    def _adam(self) -> torch.optim.Adam:
        groups = parameter_groups(self.model, self.guide, weight_decay=self.settings.weight_decay)
        capturable = self.settings.capture and self.fabric.device.type == "cuda"
        return torch.optim.Adam(groups, lr=self.settings.lr, fused=True, capturable=capturable)

    def _captured(self) -> CUDAGraphStep | None:
        if not self.settings.capture:
            return None
        return CUDAGraphStep(self.eager, like=next(self.model.parameters()))

    def resume(self) -> None:
        """Goes back to the end of the last finished epoch, as ``last.pt`` holds it."""
        path = self.folder / "last.pt"
        content = checkpoint.read(path)
        if "options" not in content["extra"]:
            raise checkpoint.CheckpointError(f"{path} holds weights alone, as best.pt does: no run goes on from them")
        differences = self.settings.differences(content["extra"]["options"])
        if differences:
            raise checkpoint.CheckpointError(
                f"{path} was trained with other options; resume with the same, or choose another folder:\n  "
                + "\n  ".join(differences)
            )
        checkpoint.restore(content, self.model, self.guide, path=path)
        self._go_back(content["extra"])

    def run(self, log: RunLog, progress: TrainProgress) -> None:
        """Trains to the last epoch, or until patience ends."""
        while self.is_going():
            started = time.perf_counter()
            self.end_epoch(self.train_epoch(log, progress), log, progress, started=started)

    def is_going(self) -> bool:
        """Whether there are epochs left, and patience."""
        patience = self.settings.patience
        return self.epoch < self.settings.epochs and (patience is None or self.epoch - self.best_epoch < patience)

    def load_best(self) -> None:
        """Puts the best epoch's weights into model and guide."""
        if self.folder is not None and (self.folder / "best.pt").exists():
            checkpoint.load(self.folder / "best.pt", self.model, self.guide)
        elif self.best_weights:
            self.model.load_state_dict(self.best_weights["model"])
            self.guide.load_state_dict(self.best_weights["guide"])

    def train_epoch(self, log: RunLog, progress: TrainProgress) -> float:
        """One pass over the data, and its mean loss; a captured one in which something failed is made anew."""
        if self.captured is not None:
            before = self.snapshot()
            epoch_log = self._pass(self.captured, log, progress)
            if not any(gather_results(self._has_failed)):
                epoch_log.write()
                return epoch_log.mean()
            self.roll_back(before)
            progress.back_to(self.epoch)
        epoch_log = self._pass(self.eager, log, progress)
        with self._located(len(self.train) - 1):
            self.eager.refuse_non_finite((), "the gradient was not finite")
        return epoch_log.mean()

    def end_epoch(self, loss: float, log: RunLog, progress: TrainProgress, *, started: float) -> None:
        """Validates, logs and saves what a pass over the data has made.

        Args:
            loss: its mean.
            log, progress: are told.
            started: when it began, by ``time.perf_counter``.
        """
        values = {"train_loss": loss}
        self.epoch += 1
        if self.valid is not None:
            metrics = self._validate()
            values |= {f"valid/{name}": value for name, value in metrics.items()}
        self._keep_if_best(values)
        log.write("epoch", self.step, epoch=self.epoch, seconds=time.perf_counter() - started, **values)
        progress.epoch_done(self.epoch, values)
        self._save_last()

    def begin_pass(self, log: RunLog) -> EpochLog:
        """Makes ready for a pass over the data, whose outcomes the epoch_log takes."""
        self.module.train()
        return EpochLog(log, epoch=self.epoch + 1, every=self.settings.log_every)

    def todo(self) -> Iterator[tuple[tuple, StepCoefficients, int]]:
        """Every batch of an epoch once, on the device, with the weights of its step and its number of examples.

        :meth:`count` is to be called for one before the next is asked for.
        """
        for batch, share, whole in self.batches:
            weights = StepCoefficients.at(self.step, options=self.settings, per_epoch=len(self.train), share=share)
            yield self.fabric.to_device(batch), weights, whole

    def count(
        self, outcome: Outcome, epoch_log: EpochLog, progress: TrainProgress, *, lr: float, examples: int
    ) -> None:
        """Counts a step that has been made."""
        self.step += 1
        epoch_log.add(outcome, step=self.step, lr=lr, examples=examples)
        progress.step_done()

    def snapshot(self) -> dict[str, Any]:
        """A copy of everything that training changes."""
        parts = {"model": self.model.state_dict(), "guide": self.guide.state_dict()}
        return copy.deepcopy(parts | {"state": self._state()})

    def roll_back(self, before: dict[str, Any]) -> None:
        """Goes back to a snapshot."""
        self.model.load_state_dict(before["model"])
        self.guide.load_state_dict(before["guide"])
        self._go_back(before["state"])
        self.captured = self._captured()  # the optimiser's state lies elsewhere now

    def is_broken(self) -> bool:
        """Whether a parameter is NaN or Inf."""
        return find_non_finite((), self.eager.parts, ()) is not None

    def _has_failed(self) -> bool:
        return self.captured.has_failed() or self.is_broken()

    def _pass(self, step: Step | CUDAGraphStep, log: RunLog, progress: TrainProgress) -> EpochLog:
        """Every batch once; what an eager step tells is logged at once."""
        epoch_log = self.begin_pass(log)
        for number, (batch, weights, examples) in enumerate(self.todo()):
            with self._located(number):
                outcome = step(batch, weights)
            self.count(outcome, epoch_log, progress, lr=weights.lr, examples=examples)
            if step is self.eager:
                epoch_log.write()
        return epoch_log

    @contextmanager
    def _located(self, number: int) -> Iterator[None]:
        """Errors inside tell the epoch and the batch."""
        try:
            yield
        except NonFiniteError as error:
            raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: {error}") from error

    def _validate(self) -> dict[str, float]:
        try:
            with torch.compiler.set_stance("force_eager"):
                return validate(self.model, self.guide, self.valid, num_samples=self.settings.num_samples)
        except NumericalError as error:
            raise NonFiniteError(f"epoch {self.epoch}, validation: {error}") from error

    def _keep_if_best(self, values: dict[str, float]) -> None:
        monitor = self.settings.monitor or ("accuracy" if "valid/accuracy" in values else "log_prob")
        value = values.get(f"valid/{monitor}")
        if self.valid is not None and value is None:
            known = ", ".join(name.removeprefix("valid/") for name in values if name.startswith("valid/"))
            raise ValueError(f"monitor {monitor!r} is no metric of this model; choose one of {known}")
        if value is not None and not is_better(monitor, value, self.best_value):
            return
        self.best_epoch, self.best_value = self.epoch, value
        if self.folder is not None:
            self._save("best.pt", epoch=self.epoch, value=value)
        else:
            self.best_weights = copy.deepcopy({"model": self.model.state_dict(), "guide": self.guide.state_dict()})

    def _save_last(self) -> None:
        if self.folder is not None:
            self._save("last.pt", **self._state())

    def _save(self, name: str, **extra: Any) -> None:
        """Writes a checkpoint, which all processes wait for."""
        broadcast_result(lambda: checkpoint.save(self.folder / name, self.model, self.guide, **extra))

    def _state(self) -> dict[str, Any]:
        """All but the weights: what a run needs to go on exactly."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value,
            "optimizer": self.optimizer.state_dict(),
            "options": asdict(self.settings),
            "random": random_state.capture_all_ranks(self.train),
        }

    def _go_back(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        self.best_epoch, self.best_value = state["best_epoch"], state["best_value"]
        self.optimizer.load_state_dict(state["optimizer"])
        random_state.restore_own_rank(state["random"], self.train)


def _peek(loader: Iterable) -> tuple:
    """The first batch of a loader, whose random state stays."""
    state = random_state.capture(loader)
    try:
        return next(iter(loader))
    finally:
        random_state.restore(state, loader)
