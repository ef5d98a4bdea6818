"""Stochastic variational inference of a model and its guide, which can be stopped and resumed at
any moment."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probattn.inference.batches import Loader, check_loader, unpack_batch
from probattn.inference.distributed import (
    broadcast_result,
    check_same_batches,
    make_fabric,
    seed_per_rank,
    world,
)
from probattn.inference.io.checkpoint import separate_entries
from probattn.inference.io.files import locked
from probattn.inference.objective import guide_checks
from probattn.inference.objective.num_data import attribute, check_num_data
from probattn.inference.random_states import first_of
from probattn.inference.training.callbacks import Callback
from probattn.inference.training.device import device_settings
from probattn.inference.training.optimizers import OptimizerFactory, Optimizers, SchedulerFactory
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.progress import Progress
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Objective
from probattn.inference.training.trainer import Trainer
from probattn.param_store import without_store_warnings
from probattn.threads import one_thread_at_a_time

if TYPE_CHECKING:
    from lightning_fabric.loggers import Logger


@dataclass(frozen=True)
class History:
    """Records of a training run.

    Args:
        steps: records of training steps: ``loss`` and the terms that sum to it, ``nll``,
            ``kl/SITE`` (times the KL weight of that step), ``penalty/SITE``, in nats per example;
            ``lr``, ``epoch``, ``step``.
        epochs: records of epochs: ``train_loss``, ``valid/METRIC``, ``seconds``, ``epoch``,
            ``step``.
        best_epoch: epoch whose weights the model now has.
        best_value: monitored metric of that epoch, or None without validation data.
    """

    steps: list[dict[str, Any]]
    epochs: list[dict[str, Any]]
    best_epoch: int
    best_value: float | None


@one_thread_at_a_time
@without_store_warnings()
def fit(
    model: nn.Module,
    guide: nn.Module,
    train: Loader,
    valid: Loader | None = None,
    *,
    options: TrainOptions = TrainOptions(),  # noqa: B008 - it is frozen
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    loggers: Iterable["Logger"] = (),
    callbacks: Iterable[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    notes: Mapping[str, str] | None = None,
) -> History:
    """Train a model and its guide by SVI and load the weights of the best epoch (without ``valid``:
    the last).

    The loss is −ELBO/N, so that penalties, clipping and logs are per example (KEP-SVGP paper, eq.
    20). With ``out``, ``best.pt`` holds the weights of the best epoch, ``last.pt`` everything
    needed to resume exactly, and ``log.jsonl`` and the loggers every term of the objective. Files
    are replaced atomically after an epoch.

    Inducing inputs and anchors of the layers are placed at the first batch, unless they have been
    before. Noise whose scale was not given (``Gaussian()``) gets that of its labels.
    Submodules in evaluation mode stay there; a model or guide that is there as a whole is put into
    training mode.

    Args:
        model: model with an attribute ``num_data`` and its labels at the site ``y``, e.g.
            :class:`~probattn.models.Supervised`. Functions, and modules under handlers, are trained
            by Pyro's ``SVI``.
        guide: guide of :func:`probattn.guides.for_model`, any Pyro AutoGuide, or another module.
        train: sized iterable of batches with labels, as tuples, mappings or data classes (see
            :func:`~probattn.inference.batches.unpack_batch`), of ``num_data`` examples.
        valid: the same for validation.
        options: number of epochs, learning rate and everything else that is a number or a name.
        optimizer: function of parameter groups that returns a :class:`torch.optim.Optimizer`, such
            as ``lambda groups: torch.optim.SGD(groups, momentum=0.9)``. Each group has its
            ``params``, ``lr`` and ``weight_decay`` by the options. None is AdamW, or Adam without
            ``options.decoupled_weight_decay``.
        scheduler: function of an optimiser that returns a
            :class:`torch.optim.lr_scheduler.LRScheduler`, which is stepped after every training
            step and replaces ``schedule``, ``warmup_epochs`` and ``min_lr`` of the options (the
            schedules of KL weight and regulariser stay). With natural gradients, their optimiser
            gets one as well.
        loggers: loggers of Lightning or Lightning Fabric, of which ``log_metrics`` and ``finalize``
            are called.
        callbacks: instances of classes that inherit from :class:`~probattn.inference.Callback`.
        out: folder of the run.
        resume: resume from ``out/last.pt``, or start if there is none. Data, loaders, model and
            optimisers must be built as before. Resuming is exact for random numbers of the global
            generators of PyTorch, NumPy and Python, and of generators that are attributes of a
            loader, its samplers or its data set.
        progress: display a bar on stderr; in a file, a line per epoch. A long run says how long it
            takes.
        notes: texts that ``best.pt`` keeps, such as digests of files that belong to its weights.

    Raises:
        FileExistsError: ``out`` holds checkpoints of a run and ``resume`` is False.
        OSError: ``out`` cannot be written, or another process works in it (``filelock.Timeout``).
        CheckpointError: a damaged checkpoint; one of another architecture, other options or
            optimisers.
        NonFiniteError: a NaN or Inf in data, weights or loss; names its source and leaves the
            checkpoints unchanged.
        TypeError: ``train`` or ``valid`` is a data set, a single batch or an iterator, and not a
            loader; the model or the guide is a function.
        ValueError: no training data, another ``num_data`` than the loader's, a guide of another
            model, or an ``AutoDelta`` for a model that learns Λ.
    """
    # Until it returns; the error that follows names the source.
    warnings.filterwarnings("ignore", "Encountered NaN")
    check_loader(train, "train", sized=True)
    if valid is not None:
        check_loader(valid, "valid")
    guide_checks.check_modules(model, guide)
    check_num_data(model, train)
    guide_checks.check(model, guide)
    folder = None if out is None else Path(out)
    with ExitStack() as stack:
        fabric = make_fabric(options.accelerator, options.devices)
        check_same_batches(train)
        _claim(folder, stack, resume=resume)
        stack.enter_context(device_settings(options, fabric.device))

        def first_batch() -> tuple[Tensor, ...]:
            return fabric.to_device(unpack_batch(first_of(train)).arguments())

        _prepare(model, guide, first_batch, device=fabric.device, seed=options.seed)
        objective = Objective(model, guide, options=options, first_batch=first_batch, fabric=fabric)
        optimizers = Optimizers(
            model,
            guide,
            options=options,
            num_data=objective.num_data,
            steps_per_epoch=options.steps_per_epoch(len(train)),
            optimizer=optimizer,
            scheduler=scheduler,
        )
        seed_per_rank()
        trainer = Trainer(
            objective=objective,
            optimizers=optimizers,
            train=train,
            valid=valid,
            folder=folder,
            callbacks=tuple(callbacks),
            notes=notes or {},
        )
        trainer.resume()
        is_first = world().rank == 0
        log = RunLog(
            folder if is_first else None,
            step=trainer.step,
            loggers=tuple(loggers) if is_first else (),
        )
        stack.push(log.finalize)
        bar = Progress(
            epochs=options.epochs,
            total=options.epochs * trainer.steps_per_epoch,
            initial=trainer.step,
            is_shown=progress and not trainer.is_finished() and is_first,
        )
        trainer.run(log, stack.enter_context(closing(bar)))
        trainer.load_best()
    return History(log.of("step"), log.of("epoch"), trainer.best_epoch, trainer.best_value)


def _claim(folder: Path | None, stack: ExitStack, *, resume: bool) -> None:
    """Lock the folder of a run, if it has one, until the stack ends.

    Raises:
        FileExistsError: it holds a run that is not to be resumed.
    """
    if folder is None:
        return
    broadcast_result(lambda: stack.enter_context(locked(folder)))
    holds_run = (folder / "last.pt").exists() or (folder / "best.pt").exists()
    if holds_run and not resume:
        raise FileExistsError(
            f"{folder} holds a run; continue it with resume=True, or choose another folder"
        )


def _prepare(
    model: nn.Module,
    guide: nn.Module,
    first_batch: Callable[[], tuple[Tensor, ...]],
    *,
    device: torch.device,
    seed: int | None,
) -> None:
    """Put model and guide on the device, in training mode, and create what the first batch
    determines: inducing inputs, the parameters of AutoGuides, and the scale of the noise."""
    if seed is not None:
        torch.manual_seed(seed)
    for module in (model, guide):
        module.to(device)
        if not module.training:  # as a whole; its submodules may be in evaluation mode
            module.train()
        separate_entries(module)
    network = attribute(model, "network")
    modules = network.modules() if hasattr(network, "initialise_inducing") else ()
    if not all(getattr(module, "is_placed", True) for module in modules):
        inputs, _, *mask = first_batch()
        network.initialise_inducing(inputs, *mask)
    for module in (model, guide):
        if guide_checks.is_lazy(module):
            guide_checks.materialise(module, first_batch())
    likelihood = attribute(model, "likelihood")
    if getattr(likelihood, "needs_labels", False):
        _, labels, *mask = first_batch()
        if labels.dim() == 3:  # one label per token
            labels = labels[mask[0]] if mask else labels.flatten(0, 1)
        likelihood.initialise(labels)
