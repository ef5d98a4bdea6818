"""Training loop of one run: epochs, validation, early stopping, checkpoints and resuming."""

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
from probattn.inference.batches import unpack_batch
from probattn.inference.distributed import random_state
from probattn.inference.distributed.batch_sharding import shard
from probattn.inference.distributed.collectives import broadcast_result, gather_results, make_fabric
from probattn.inference.elbo import ELBOS
from probattn.inference.io import checkpoint
from probattn.inference.natural_gradient import NaturalGradientDescent, check_gaussian, gaussian_modules
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.training.best_weights import find_best, read_best
from probattn.inference.training.compile_blocks import compile_blocks
from probattn.inference.training.cuda_graph import CUDAGraphStep
from probattn.inference.training.epoch_log import EpochLog
from probattn.inference.training.fingerprint import Fingerprint, fingerprint
from probattn.inference.training.inexact import find_reasons
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.parameter_groups import parameter_groups
from probattn.inference.training.probe import probe
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Step
from probattn.inference.training.validation import is_better, validate
from probattn.programs import attribute

STATE = {
    "epoch": int,
    "step": int,
    "best_epoch": int,
    "best_value": float | int | None,
    "optimizer": dict,
    "options": dict,
    "random": list,
    "value": float | int | None,
    "fingerprint": dict,
}
"""Types of the values of ``last.pt`` that a run resumes from."""


class Trainer:
    """State of a training run: modules, optimiser and counters, all of which a checkpoint holds.

    Args:
        model, guide, train, valid: as for :func:`~probattn.inference.fit`.
        options: of the run.
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
    ) -> None:
        self.model, self.guide, self.train, self.valid = model, guide, train, valid
        self.options, self.folder = options, folder
        for part in (model, guide):
            _leave_evaluation_mode(part)
        self.epoch = self.step = self.best_epoch = 0
        self.value: float | None = None
        self.best_value: float | None = None
        self._best_weights: dict[str, dict] | None = None
        self._start = random_state.capture(())
        self._fabric = make_fabric(options.accelerator, options.devices)
        self._batches = shard(train)
        self._loaders = {"train": train} | ({} if valid is None else {"valid": valid})
        self._fingerprint: Fingerprint | None = None
        vectorize = options.vectorize
        if vectorize is None:
            vectorize = broadcasts(model, guide, lambda: self._fabric.to_device(_first_batch(train)))
        elbo = ELBOS[options.elbo](num_particles=1 if vectorize else options.num_particles)
        if options.compile:
            compile_blocks(model)
        self._module = self._fabric.setup_module(elbo(model, guide))
        capturable = options.capture and self._fabric.device.type == "cuda"
        num_data = attribute(model, "num_data")
        natural, scale = None, options.guide_lr_scale
        if options.guide_optimizer == "ngd":
            check_gaussian(guide)
            if gaussians := gaussian_modules(guide):
                natural = NaturalGradientDescent(
                    gaussians, lr_scale=scale, scale=num_data / options.kl_weight_of(num_data)
                )
            scale = 1.0
        groups = parameter_groups(
            model,
            guide,
            weight_decay=options.weight_decay,
            lr_scale=options.lr_scale,
            guide_lr_scale=scale,
            without=() if natural is None else natural.parameters(),
        )
        self._optimizer = torch.optim.Adam(groups, lr=options.lr, fused=True, capturable=capturable)
        self._eager_step = Step(
            Objective(self._module, elbo, options=options, num_data=num_data, vectorize=vectorize),
            self._optimizer,
            backward=self._fabric.backward,
            clip_norm=options.clip_norm,
            natural=natural,
            parts={"model": model, "guide": guide},
        )
        self._graph_step = self._make_graph_step()

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
        path = self.folder / "last.pt"
        content = checkpoint.read(path)
        state = content["extra"]
        if "options" not in state:
            raise checkpoint.CheckpointError(f"{path} holds only weights, as best.pt does: no run resumes from them")
        checkpoint.check_extra(path, state, STATE)
        differences = self.options.differences(state["options"])
        if differences:
            raise checkpoint.CheckpointError(
                f"{path} was trained with other options; resume with the same, or choose another folder:\n  "
                + "\n  ".join(differences)
            )
        checkpoint.check_architecture(content, self.model, self.guide, path=path)
        changed, environment = self._fingerprint.differences(state["fingerprint"])
        if changed:
            raise checkpoint.CheckpointError(
                f"{path} was trained with other data, loaders or settings of the model; resume with the same, or "
                "choose another folder:\n  " + "\n  ".join(changed[:20]) + ("\n  …" if len(changed) > 20 else "")
            )
        best = broadcast_result(lambda: self._best_epoch(state))
        with checkpoint.refuse_wrong_types(path):
            self._load_state(state)
        checkpoint.restore(content, self.model, self.guide, path=path)
        if best is None:
            self._keep_best()
        else:
            self.best_epoch, self.best_value = best
        return environment

    def run(self, log: RunLog, progress: TrainProgress) -> None:
        """Train until the last epoch, or until early stopping."""
        while not self.is_finished():
            started = time.perf_counter()
            values = {"train_loss": self._train_epoch(log, progress)}
            self.epoch += 1
            values |= self._validate()
            is_best = self._compare_with_best(values)
            log.write("epoch", self.step, epoch=self.epoch, seconds=time.perf_counter() - started, **values)
            progress.epoch_done(self.epoch, values)
            if self.folder is not None:
                self._save("last.pt", **self._state(since=self._start))
            if is_best:
                self._keep_best()

    def load_best(self) -> None:
        """Load the weights of the best epoch into model and guide.

        Raises:
            CheckpointError: ``best.pt`` is missing, damaged, or of another epoch.
        """
        if self.folder is not None:
            path = self.folder / "best.pt"
            checkpoint.restore(read_best(self.folder), self.model, self.guide, path=path)
        elif self._best_weights is not None:
            self._load_weights(self._best_weights)

    def is_finished(self) -> bool:
        """Return True after the last epoch, or when early stopping has ended the run."""
        patience = self.options.patience
        out_of_patience = patience is not None and self.epoch - self.best_epoch >= patience
        return self.epoch >= self.options.epochs or out_of_patience

    def _best_epoch(self, state: dict[str, Any]) -> tuple[int, float | None] | None:
        """Return epoch and monitored value of ``best.pt``, or None if it must be written from ``last.pt``."""
        best = find_best(self.folder, state)
        return None if best is None else (best["extra"]["epoch"], best["extra"].get("value"))

    def _train_epoch(self, log: RunLog, progress: TrainProgress) -> float:
        """Train on each batch once and return the mean loss.

        If a step of a CUDA graph fails, the epoch is repeated with the eager step, which names what failed.
        """
        if self._graph_step is not None:
            weights, state = copy.deepcopy((self._weights(), self._state()))
            epoch_log = self._train_batches(self._graph_step, log, progress)
            if not any(gather_results(self._has_graph_failed)):
                epoch_log.write()
                return epoch_log.mean()
            self._load_weights(weights)
            self._load_state(state)
            self._graph_step = self._make_graph_step()  # loading the optimiser's state has replaced its tensors
            progress.restart_epoch(self.epoch)
        epoch_log = self._train_batches(self._eager_step, log, progress)
        with self._locate_errors(len(self.train) - 1):
            self._eager_step.refuse_non_finite((), "the gradient was not finite")
        return epoch_log.mean()

    def _train_batches(self, step: Step | CUDAGraphStep, log: RunLog, progress: TrainProgress) -> EpochLog:
        """Take one step on each batch; eager steps are logged at once."""
        epoch_log = EpochLog(log, epoch=self.epoch + 1, every=self.options.log_every)
        for number, (batch, loss_weight, examples) in enumerate(self._batches):
            coefficients = StepCoefficients.at(
                self.step,
                options=self.options,
                steps_per_epoch=len(self.train),
                num_data=attribute(self.model, "num_data"),
                loss_weight=loss_weight,
            )
            with self._locate_errors(number):
                outcome = step(self._fabric.to_device(batch), coefficients)
            self.step += 1
            epoch_log.add(outcome, step=self.step, lr=coefficients.lr, examples=examples)
            progress.step_done()
            if step is self._eager_step:
                epoch_log.write()
        return epoch_log

    def _make_graph_step(self) -> CUDAGraphStep | None:
        if not self.options.capture:
            return None
        return CUDAGraphStep(self._eager_step, like=next(self.model.parameters()))

    def _has_graph_failed(self) -> bool:
        """Return True if a step failed, or a parameter is now NaN or Inf."""
        return self._graph_step.has_failed() or find_non_finite((), self._eager_step.parts, ()) is not None

    @contextmanager
    def _locate_errors(self, number: int) -> Iterator[None]:
        """Add epoch and batch number to a :class:`NonFiniteError`."""
        try:
            yield
        except NonFiniteError as error:
            raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: {error}") from error

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

    def _compare_with_best(self, values: dict[str, float]) -> bool:
        """Return True if this epoch is the best so far, which each is without validation data, and remember it."""
        monitor = self.options.monitor or ("nll" if "valid/accuracy" in values else "log_prob")
        self.value = values.get(f"valid/{monitor}")
        if self.valid is not None and self.value is None:
            known = ", ".join(name.removeprefix("valid/") for name in values if name.startswith("valid/"))
            raise ValueError(f"monitor {monitor!r} is no metric of this model; choose one of {known}")
        if self.value is not None and not is_better(monitor, self.value, self.best_value):
            return False
        self.best_epoch, self.best_value = self.epoch, self.value
        return True

    def _keep_best(self) -> None:
        """Keep the weights of this epoch, after ``last.pt`` has them: a run that is killed in between has lost none."""
        if self.folder is not None:
            self._save("best.pt", epoch=self.epoch, value=self.value)
        else:
            self._best_weights = copy.deepcopy(self._weights())

    def _save(self, name: str, **extra: Any) -> None:
        """Write a checkpoint on rank 0; all ranks wait for it."""
        broadcast_result(lambda: checkpoint.save(self.folder / name, self.model, self.guide, **extra))

    def _weights(self) -> dict[str, dict]:
        return {"model": self.model.state_dict(), "guide": self.guide.state_dict()}

    def _load_weights(self, weights: dict[str, dict]) -> None:
        self.model.load_state_dict(weights["model"])
        self.guide.load_state_dict(weights["guide"])

    def _state(self, *, since: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return everything but the weights that a run needs to resume exactly; ``since`` as for ``capture``."""
        taken = self._fingerprint
        return {
            "epoch": self.epoch,
            "step": self.step,
            "value": self.value,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value,
            "optimizer": self._optimizer.state_dict(),
            "options": asdict(self.options),
            "random": random_state.capture_all_ranks(self._loaders, since=since),
            "fingerprint": taken and taken.after_training(self.model, self.guide)._asdict(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self.epoch, self.step, self.value = state["epoch"], state["step"], state["value"]
        self.best_epoch, self.best_value = state["best_epoch"], state["best_value"]
        self._optimizer.load_state_dict(state["optimizer"])
        random_state.restore_own_rank(state["random"], self._loaders)


def _leave_evaluation_mode(part: nn.Module) -> None:
    """Put a model or guide that is in evaluation mode as a whole into training mode.

    Submodules that are in evaluation mode below a part in training mode stay as they are.
    """
    if not part.training:
        part.train()


def _first_batch(loader: Iterable) -> tuple:
    """Return the first batch of a loader and restore its random state."""
    with random_state.preserved(loader):
        return unpack_batch(next(iter(loader))).arguments()
