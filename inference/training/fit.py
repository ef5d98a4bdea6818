"""Stochastic variational inference of a model and its guide, which can be stopped and resumed at any moment."""

from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probattn import guides
from probattn.inference.batches import check_loader, unpack_batch
from probattn.inference.distributed import random_state
from probattn.inference.distributed.collectives import broadcast_result, world
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.lock import locked
from probattn.inference.training import inexact
from probattn.inference.training.attention_kernels import without_cudnn_attention
from probattn.inference.training.callbacks import Callback
from probattn.inference.training.deterministic import deterministic
from probattn.inference.training.first_batches import initialise_likelihood, try_prediction
from probattn.inference.training.loggers import Logger, check_logger
from probattn.inference.training.matmul_precision import float32_products
from probattn.inference.training.num_data import check_num_data
from probattn.inference.training.optimizers import OptimizerFactory, SchedulerFactory
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_log import RunLog, read_log
from probattn.inference.training.trainer import Trainer
from probattn.param_store import without_store_warnings
from probattn.programs import Program, as_module, device


@dataclass(frozen=True)
class History:
    """Records of a training run.

    Args:
        steps: records of training steps: ``loss`` and the terms that sum to it, ``nll``, ``kl/SITE`` (times the KL
            weight of that step), ``penalty/SITE``, in nats per example; ``lr``, ``epoch``, ``step``.
        epochs: records of epochs: ``train_loss``, ``valid/METRIC``, ``seconds``, ``epoch``, ``step``.
        best_epoch: epoch whose weights the model now has.
        best_value: monitored metric of that epoch, or None without validation data.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_value: float | None = None


@without_store_warnings()
def fit(
    model: Program,
    guide: Program,
    train: Iterable,
    valid: Iterable | None = None,
    *,
    options: TrainOptions = TrainOptions(),  # noqa: B008 - it is frozen
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    loggers: Iterable[Logger] | None = None,
    callbacks: Iterable[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> History:
    """Train a model and its guide by SVI and load the weights of the best epoch (without ``valid``: the last).

    The loss is −ELBO/N, so that penalties, clipping and logs are per example (KEP-SVGP paper, eq. 20). With ``out``,
    ``last.pt`` holds everything needed to resume exactly and is replaced atomically after every epoch (see
    ``options.checkpoint_every``), ``best.pt`` holds the weights of
    the best epoch, ``log.jsonl`` and the loggers every term of the objective.

    Before the first epoch a few examples are predicted, so that a network that cannot is found at once; and noise whose
    scale was not given (``Gaussian()``) gets that of the training labels.

    Submodules in evaluation mode stay there; a model or guide that is there as a whole is put into training mode.

    Args:
        model: model with an attribute ``num_data`` and its labels at the site ``y``, e.g.
            :class:`~probattn.models.Supervised`; for a wrapped model, such as ``pyro.condition(model, data=...)``,
            ``num_data`` is looked up in the module inside; a function needs the attribute itself.
        guide: guide of :func:`probattn.guides.for_model`, any Pyro AutoGuide, or a function with ``pyro.param``
            statements, whose parameters stay in Pyro's global store.
        train: sized iterable of batches with labels, as tuples, mappings or data classes (see
            :func:`~probattn.inference.batches.unpack_batch`), of ``num_data`` examples (see
            :func:`~probattn.inference.training.num_data.training_sizes`). All random number generators that it refers
            to are checkpointed.
        valid: the same for validation.
        options: number of epochs, learning rate and everything else that is a number or a name.
        optimizer: function of parameter groups that returns a :class:`torch.optim.Optimizer`, such as
            ``lambda groups: torch.optim.SGD(groups, momentum=0.9)``. Each group has its ``params``, ``lr`` and
            ``weight_decay`` by the options. None is AdamW, or Adam without ``options.decoupled_weight_decay``.
        scheduler: function of an optimiser that returns a :class:`torch.optim.lr_scheduler.LRScheduler`, which is
            stepped after every training step and replaces ``schedule``, ``warmup_epochs`` and ``min_lr`` of the options
            (the schedules of KL weight and regulariser stay). With natural gradients, their optimiser gets one as well.
        loggers: loggers by Lightning Fabric's protocol (see :class:`~probattn.inference.training.loggers.Logger`). None
            is TensorBoard in ``out``, if it is installed.
        callbacks: objects with methods of :class:`~probattn.inference.Callback`.
        out: folder of the run.
        resume: resume from ``out/last.pt``, or start if there is none. Data, loaders and settings of the model must be
            the same (see :class:`~probattn.inference.training.fingerprint.Fingerprint`).
        progress: display the progress.

    Raises:
        FileExistsError: ``out`` holds a run and ``resume`` is False.
        BlockingIOError: another process works in ``out``.
        OSError: ``out`` cannot be written.
        CheckpointError: a damaged checkpoint; one of another architecture, other options, data or settings; or lost
            weights of the best epoch.
        NonFiniteError: a NaN or Inf in data, weights or loss; names its source and leaves the checkpoints unchanged.
        TypeError: ``train`` or ``valid`` is a data set or a single batch, and not a loader; an optimiser, scheduler,
            logger or callback of another type.
        ValueError: no training data, another ``num_data`` than the loader's, a guide of another model, or an
            ``AutoDelta`` for a model that learns Λ.

    Warns:
        InexactResumeWarning: with ``out``, if the run may not resume exactly; names the reasons.
    """
    loggers = None if loggers is None else list(loggers)
    for logger in loggers or ():
        check_logger(logger)
    folder = None if out is None else Path(out)
    if folder is not None:
        _refuse_to_overwrite(folder, resume=resume)
    model, guide = as_module(model), as_module(guide)
    check_loader(train, "train")
    if valid is not None:
        check_loader(valid, "valid")
    check_num_data(model, train)
    if options.seed is not None:
        torch.manual_seed(options.seed)
    guides.check(model, guide)
    _materialise(model, guide, train)
    if folder is None or not (folder / "last.pt").exists():
        with deterministic() if options.deterministic else nullcontext():
            initialise_likelihood(model, train)
            try_prediction(model, guide, train)
    for part in (model, guide):
        _leave_evaluation_mode(part)
    trainer = Trainer(
        model,
        guide,
        train,
        valid,
        options=options,
        folder=folder,
        optimizer=optimizer,
        scheduler=scheduler,
        callbacks=callbacks,
    )
    random_state.seed_per_rank()

    def lock_folder() -> None:
        stack.enter_context(locked(folder))
        _refuse_to_overwrite(folder, resume=resume)  # another process may have written to it in the meantime

    is_main = world().rank == 0
    with ExitStack() as stack:
        if options.deterministic:
            stack.enter_context(deterministic())
        stack.enter_context(without_cudnn_attention())
        stack.enter_context(float32_products(options.matmul_precision, device=trainer.device))
        if folder is not None:
            broadcast_result(lock_folder)
            reasons = trainer.take_fingerprint()
            if (folder / "last.pt").exists():
                reasons += trainer.resume()
            if is_main and not trainer.is_finished():
                inexact.warn(reasons)
        log = stack.enter_context(
            RunLog(folder if is_main else None, step=trainer.step, loggers=loggers if is_main else ())
        )
        if not trainer.is_finished():
            log.write_options(asdict(options))
        steps = options.steps_per_epoch(len(train))
        bar = TrainProgress(options.epochs, steps, start=trainer.epoch, enabled=progress and is_main)
        trainer.run(log, stack.enter_context(bar))
    trainer.checkpoints.load_best()
    steps, epochs = ([record for record in log.records if record["kind"] == kind] for kind in ("step", "epoch"))
    return History(steps, epochs, trainer.best_epoch, trainer.best_value)


def _refuse_to_overwrite(folder: Path, *, resume: bool) -> None:
    found = [name for name in ("last.pt", "best.pt", "log.jsonl") if (folder / name).exists()]
    if found and not resume:
        raise FileExistsError(f"{folder} holds a run; continue it with resume=True, or choose another folder")
    if found and "last.pt" not in found:
        log = folder / "log.jsonl"
        records = read_log(log)[:-1] if log.exists() else []
        if "best.pt" in found or any(record["kind"] == "epoch" for record in records):
            raise CheckpointError(f"{folder} holds a run without last.pt, which cannot resume; choose another folder")


def _materialise(model: nn.Module, guide: nn.Module, train: Iterable) -> None:
    """Create the parameters of functions and AutoGuides, which exist only after the first run, on a first batch."""
    for part in (model, guide):
        if guides.is_lazy(part):
            home = device(model, guide) or torch.device("cpu")
            guides.materialise(part, tuple(each.to(home) for each in unpack_batch(next(iter(train))).arguments()))


def _leave_evaluation_mode(part: nn.Module) -> None:
    """Put a model or guide that is in evaluation mode as a whole into training mode.

    Submodules that are in evaluation mode below a part in training mode stay as they are.
    """
    if not part.training:
        part.train()
