"""Stochastic variational inference of a model and its guide, which can be stopped and resumed at any moment."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probattn.inference import guide_checks
from probattn.inference.batches import check_loader, unpack_batch
from probattn.inference.distributed import broadcast_result, check_same_batches, make_fabric, seed_per_rank, world
from probattn.inference.io.checkpoint import preserved
from probattn.inference.io.files import locked
from probattn.inference.programs import attribute
from probattn.inference.training.callbacks import HOOKS, Callback, Logger, check_methods, default_loggers
from probattn.inference.training.device import device_settings
from probattn.inference.training.num_data import check_num_data
from probattn.inference.training.optimizers import OptimizerFactory, SchedulerFactory, make_optimizers
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import make_objective
from probattn.inference.training.trainer import Trainer
from probattn.param_store import without_store_warnings


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
    model: nn.Module,
    guide: nn.Module,
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
    ``best.pt`` holds the weights of the best epoch, ``last.pt`` everything needed to resume exactly, and ``log.jsonl``
    and the loggers every term of the objective. Files are replaced atomically after an epoch.

    Noise whose scale was not given (``Gaussian()``) gets that of the labels of the first batch. Submodules in
    evaluation mode stay there; a model or guide that is there as a whole is put into training mode.

    Args:
        model: model with an attribute ``num_data`` and its labels at the site ``y``, e.g.
            :class:`~probattn.models.Supervised`. Functions, and modules under handlers, are trained by Pyro's ``SVI``.
        guide: guide of :func:`probattn.guides.for_model`, any Pyro AutoGuide, or another module.
        train: sized iterable of batches with labels, as tuples, mappings or data classes (see
            :func:`~probattn.inference.batches.unpack_batch`), of ``num_data`` examples.
        valid: the same for validation.
        options: number of epochs, learning rate and everything else that is a number or a name.
        optimizer: function of parameter groups that returns a :class:`torch.optim.Optimizer`, such as
            ``lambda groups: torch.optim.SGD(groups, momentum=0.9)``. Each group has its ``params``, ``lr`` and
            ``weight_decay`` by the options. None is AdamW, or Adam without ``options.decoupled_weight_decay``.
        scheduler: function of an optimiser that returns a :class:`torch.optim.lr_scheduler.LRScheduler`, which is
            stepped after every training step and replaces ``schedule``, ``warmup_epochs`` and ``min_lr`` of the options
            (the schedules of KL weight and regulariser stay). With natural gradients, their optimiser gets one as well.
        loggers: loggers by Lightning Fabric's protocol (see :class:`~probattn.inference.training.callbacks.Logger`).
            None is TensorBoard in ``out``, if it is installed.
        callbacks: objects with methods of :class:`~probattn.inference.Callback`.
        out: folder of the run.
        resume: resume from ``out/last.pt``, or start if there is none. Data, loaders, model and optimisers must be
            built as before. Resuming is exact for random numbers of the global generators of PyTorch, NumPy and Python,
            and of generators that are attributes of a loader, its samplers or its data set.
        progress: display the progress.

    Raises:
        FileExistsError: ``out`` holds a run and ``resume`` is False.
        BlockingIOError: another process works in ``out``.
        OSError: ``out`` cannot be written.
        CheckpointError: a damaged checkpoint; one of another architecture, other options or optimisers.
        NonFiniteError: a NaN or Inf in data, weights or loss; names its source and leaves the checkpoints unchanged.
        TypeError: ``train`` or ``valid`` is a data set or a single batch, and not a loader; an optimiser, scheduler,
            logger or callback of another type.
        ValueError: no training data, another ``num_data`` than the loader's, a guide of another model, or an
            ``AutoDelta`` for a model that learns Λ.
    """
    folder = None if out is None else Path(out)
    callbacks, loggers = tuple(callbacks), None if loggers is None else list(loggers)
    check_methods(callbacks, HOOKS, "callback", count=1)
    check_methods(loggers or (), ("log_metrics", "log_hyperparams", "finalize"), "logger", count=3)
    check_loader(train, "train")
    if valid is not None:
        check_loader(valid, "valid")
    check_num_data(model, train)
    guide_checks.check(model, guide)
    with ExitStack() as stack:
        fabric, is_main = make_fabric(options.accelerator, options.devices), world().rank == 0
        check_same_batches(train)
        if folder is not None:
            broadcast_result(lambda: stack.enter_context(locked(folder)))
            broadcast_result(lambda: _refuse_to_overwrite(folder, resume=resume))
        stack.enter_context(device_settings(options, fabric.device))
        if options.seed is not None:
            torch.manual_seed(options.seed)
        for part in (model, guide):
            part.to(fabric.device)
            _give_own_memory(part)
            if not part.training:  # as a whole; its submodules may be in evaluation mode
                part.train()

        def first_batch() -> tuple:
            with preserved(train):
                return fabric.to_device(unpack_batch(next(iter(train))).arguments())

        _prepare(model, guide, first_batch)
        objective = make_objective(model, guide, options=options, first_batch=first_batch, setup=fabric.setup_module)
        optimizers = make_optimizers(
            model,
            guide,
            options=options,
            num_data=objective.num_data,
            steps_per_epoch=options.steps_per_epoch(len(train)),
            optimizer=optimizer,
            scheduler=scheduler,
        )
        seed_per_rank()
        trainer = Trainer(objective, optimizers, train, valid, fabric=fabric, folder=folder, callbacks=callbacks)
        if folder is not None and (folder / "last.pt").exists():
            trainer.resume()
        if loggers is None:
            loggers = default_loggers(folder, step=trainer.step)
        step = trainer.step
        log = stack.enter_context(RunLog(folder if is_main else None, step=step, loggers=loggers if is_main else ()))
        if not trainer.is_finished():
            log.write_options(asdict(options))
        steps = options.steps_per_epoch(len(train))
        bar = TrainProgress(options.epochs, steps, start=trainer.epoch, enabled=progress and is_main)
        trainer.run(log, stack.enter_context(bar))
        trainer.load_best()
    steps, epochs = ([record for record in log.records if record["kind"] == kind] for kind in ("step", "epoch"))
    return History(steps, epochs, trainer.best_epoch, trainer.best_value)


def _refuse_to_overwrite(folder: Path, *, resume: bool) -> None:
    if not resume and any((folder / name).exists() for name in ("last.pt", "best.pt", "log.jsonl")):
        raise FileExistsError(f"{folder} holds a run; continue it with resume=True, or choose another folder")


@torch.no_grad()
def _give_own_memory(part: nn.Module) -> None:
    """Copy tensors whose entries share memory, such as an expanded buffer: no checkpoint could be loaded into them."""
    for tensor in (*part.parameters(), *part.buffers()):
        if 0 in tensor.stride() and tensor.numel() > 1:
            tensor.data = tensor.contiguous()


def _prepare(model: nn.Module, guide: nn.Module, first_batch: Any) -> None:
    """Create what needs a batch: parameters of AutoGuides, and noise of the scale of the labels."""
    if guide_checks.is_lazy(guide):
        guide_checks.materialise(guide, first_batch())
    likelihood = attribute(model, "likelihood")
    if getattr(likelihood, "needs_labels", False):
        _, labels, *mask = first_batch()
        if labels.dim() == 3:  # one label per token
            labels = labels[mask[0]] if mask else labels.flatten(0, 1)
        likelihood.initialise(labels)
