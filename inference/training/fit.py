"""Stochastic variational inference of a model and its guide, which can be killed and resumed at any moment."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from probattn import guides
from probattn.inference.distributed import random_state
from probattn.inference.distributed.collectives import broadcast_result, world
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.lock import locked
from probattn.inference.training.cuda_graph import check_alone
from probattn.inference.training.deterministic import deterministic
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.progress import TrainProgress
from probattn.inference.training.run_log import RunLog, read_log
from probattn.inference.training.trainer import Trainer
from probattn.programs import Program, as_module, attribute, device, local_params


@dataclass(frozen=True)
class History:
    """What happened in training.

    Args:
        steps: records of training steps: ``loss`` and the terms that sum to it, ``nll``, ``kl/SITE`` (times the KL
            weight of that step), ``penalty/SITE``, in nats per example; ``lr``, ``epoch``, ``step``.
        epochs: records of epochs: ``train_loss``, ``valid/METRIC``, ``seconds``, ``epoch``, ``step``.
        best_epoch: the epoch whose weights the model has now.
        best_value: its monitored metric, or None without validation data.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_value: float | None = None


def fit(
    model: Program,
    guide: Program,
    train: Iterable,
    valid: Iterable | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **options: Any,
) -> History:
    """Trains a model and its guide by SVI and leaves them at the best epoch (without ``valid``: the last).

    The loss is −ELBO/N, so that penalties, clipping and logs are per example (KEP-SVGP paper, eq. 20). With ``out``,
    ``last.pt`` holds everything to go on exactly, written after every epoch beside the old one and renamed,
    ``best.pt`` the best epoch's weights, ``log.jsonl`` and ``tensorboard/`` every term of the objective.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`: has ``num_data`` and its labels at the site ``y``; a wrapped
            model, such as ``pyro.condition(model, data=...)``, has that of the module behind it, a function its own.
        guide: of :func:`probattn.guides.for_model`, any Pyro AutoGuide, or a function with ``pyro.param`` statements,
            whose parameters stay in Pyro's global store.
        train: a sized iterable of ``(x, y)`` or ``(x, y, mask)``; its ``generator``, if it has one, is checkpointed.
        valid: the same for validation.
        out: the run's folder.
        resume: go on from ``out/last.pt``; where there is none, start.
        progress: show the progress.
        options: of :class:`~probattn.inference.TrainOptions`.

    Raises:
        FileExistsError: ``out`` holds a run and ``resume`` is False.
        BlockingIOError: another process works in ``out``.
        OSError: ``out`` cannot be written.
        CheckpointError: a damaged checkpoint, or one of another architecture or other options.
        NonFiniteError: a NaN or Inf in data, weights or loss, named; nothing on disk is touched.
        ValueError: an option out of bounds, no training data, a guide of another model, or an ``AutoDelta``
            where Λ is learned.
    """
    settings = TrainOptions(**options)
    with ExitStack() as stack:
        trainer = _prepare(model, guide, train, valid, settings=settings, out=out, resume=resume, stack=stack)
        is_main = world().rank == 0
        log = stack.enter_context(RunLog(trainer.folder if is_main else None, step=trainer.step))
        bar = TrainProgress(settings.epochs, len(train), start=trainer.epoch, shown=progress and is_main)
        trainer.run(log, stack.enter_context(bar))
    trainer.load_best()
    steps, epochs = ([record for record in log.records if record["kind"] == kind] for kind in ("step", "epoch"))
    return History(steps, epochs, trainer.best_epoch, trainer.best_value)


def _prepare(
    model: Program,
    guide: Program,
    train: Iterable,
    valid: Iterable | None,
    *,
    settings: TrainOptions,
    out: str | Path | None,
    resume: bool,
    stack: ExitStack,
) -> Trainer:
    """Return the trainer of a run, new or resumed, before its next step; arguments as for :func:`fit`.

    Args:
        stack: gets what is released at the end of the run: the lock of the folder, and the deterministic mode.
    """
    if settings.capture:
        check_alone(settings.accelerator)
    folder = None if out is None else Path(out)
    if folder is not None:
        _refuse_to_overwrite(folder, resume=resume)
    if len(train) == 0:
        raise ValueError("the training loader gives no batch")
    model, guide = as_module(model), as_module(guide)
    _check_size(train, num_data_of(model))
    if settings.seed is not None:
        torch.manual_seed(settings.seed)
    guides.check(model, guide)
    for part in (model, guide):
        if guides.is_lazy(part):
            home = device(model, guide) or torch.device("cpu")
            with local_params(model, guide):
                guides.materialise(part, tuple(each.to(home) for each in next(iter(train))))
    trainer = Trainer(model, guide, train, valid, settings=settings, folder=folder)
    random_state.seed_per_rank()

    def lock() -> None:
        stack.enter_context(locked(folder))
        _refuse_to_overwrite(folder, resume=resume)  # another process may have been there since

    if settings.deterministic:
        stack.enter_context(deterministic())
    if folder is not None:
        broadcast_result(lock)
        if (folder / "last.pt").exists():
            trainer.resume()
    return trainer


def _refuse_to_overwrite(folder: Path, *, resume: bool) -> None:
    there = [name for name in ("last.pt", "best.pt", "log.jsonl") if (folder / name).exists()]
    if there and not resume:
        raise FileExistsError(f"{folder} holds a run; go on with resume=True, or choose another folder")
    if there and "last.pt" not in there and any(r["kind"] == "epoch" for r in _records(folder / "log.jsonl")[:-1]):
        raise CheckpointError(f"{folder} holds a run without last.pt, which cannot go on; choose another folder")


def _records(path: Path) -> list[dict[str, Any]]:
    return read_log(path) if path.exists() else []


def num_data_of(model: Program) -> int:
    """Return the number of examples that a model was built for.

    Raises:
        ValueError: a model without that attribute.
    """
    num_data = attribute(model, "num_data")
    if num_data is None:
        raise ValueError(
            "fit needs the size of the training set: set model.num_data, or use probattn.models.Supervised"
        )
    return num_data


def _check_size(train: Iterable, num_data: int) -> None:
    """A wrong ``num_data`` would weigh the KL wrongly without a sign."""
    data = getattr(train, "dataset", None)
    size = getattr(train, "num_data", None) or (len(data) if hasattr(data, "__len__") else num_data)
    if size != num_data:
        raise ValueError(
            f"the model was built with num_data={num_data}, but the training loader has {size} examples: the KL would "
            f"count {size / num_data:.3g} times; build the model with num_data={size}"
        )
