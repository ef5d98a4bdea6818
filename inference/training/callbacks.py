"""What a run reports to: callbacks with PyTorch Lightning's names, and loggers of Lightning Fabric's protocol."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from probattn.inference.training.step import Outcome
    from probattn.inference.training.trainer import Trainer


class Callback:
    """Methods that :func:`~probattn.inference.fit` calls during a run, with PyTorch Lightning's names and arguments.

    Each gets the :class:`~probattn.inference.training.trainer.Trainer`. A callback ends the run by
    ``trainer.should_stop = True``: after the present step, with the validation and the checkpoint of its epoch. In
    ``on_train_epoch_end`` it may set ``trainer.is_best``, which decides whose weights are kept.

    A callback with a state that has to survive an interruption has ``state_dict`` and ``load_state_dict``. Under
    torchrun, callbacks run on every rank. Any object with some of these methods is a callback, whatever its class.
    """

    def on_train_start(self, trainer: "Trainer") -> None:
        """Run before the first epoch, or the first one after resuming."""

    def on_train_epoch_start(self, trainer: "Trainer") -> None:
        """Run before each epoch."""

    def on_train_step_end(self, trainer: "Trainer", outputs: "Outcome") -> None:
        """Run after each training step.

        Args:
            trainer: the trainer.
            outputs: ``loss`` of the step in nats per example, and its ``terms``, as tensors on the device of this
                rank.
        """

    def on_train_epoch_end(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Run after each epoch and its validation, before the checkpoint.

        Args:
            trainer: the trainer.
            metrics: ``train_loss`` and ``valid/METRIC``; entries that a callback adds are logged.
        """

    def on_train_end(self, trainer: "Trainer") -> None:
        """Run after the last epoch; the weights are still those of the last epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: tensors, numbers, strings, and dicts and lists of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Logger(Protocol):
    """Logger by Lightning Fabric's protocol, such as Lightning's ``CSVLogger``, ``WandbLogger`` or ``MLFlowLogger``."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Record metrics by name after a training step."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Record the options of the run; a logger that cannot may raise ``NotImplementedError``."""

    def finalize(self, status: str) -> None:
        """Finish the log; ``status`` is ``"success"``, ``"failed"`` or ``"aborted"``."""


def check_methods(objects: Iterable[Any], methods: Iterable[str], kind: str, *, count: int) -> None:
    """Check that objects have at least ``count`` of the methods that a run will call, which would be noticed late.

    Raises:
        TypeError: a class instead of an instance, or an object without them.
    """
    for each in objects:
        if isinstance(each, type) or sum(callable(getattr(each, name, None)) for name in methods) < count:
            name = getattr(each, "__name__", type(each).__name__)
            raise TypeError(f"{name} is no {kind}: pass an instance with methods {', '.join(methods)}")


def default_loggers(folder: Path | None, *, step: int) -> list[Logger]:
    """Return TensorBoard's logger for the run's folder, if there is a folder and TensorBoard is installed.

    Args:
        folder: folder of the run.
        step: last step to keep; TensorBoard hides later ones.
    """
    if folder is None or not find_spec("tensorboard"):
        return []
    from lightning_fabric.loggers import TensorBoardLogger

    return [TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False, purge_step=step + 1)]
