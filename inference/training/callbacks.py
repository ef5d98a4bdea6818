"""Base class of callbacks, whose methods ``fit`` calls during a run."""

from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from probattn.inference.training.options import TrainOptions
from probattn.inference.training.step import Outcome


class Training(Protocol):
    """Run that a callback sees.

    Attributes:
        model, guide: the modules that are trained.
        options: options of the run.
        epoch, step: numbers of epochs and of training steps done.
        best_epoch, best_value: best epoch before this one, and its monitored metric.
        is_best: True if this epoch is the best so far by the option ``monitor``; may be set in ``on_train_epoch_end``.
        should_stop: set to True, it ends the run after the present step.
    """

    model: nn.Module
    guide: nn.Module
    options: TrainOptions
    epoch: int
    step: int
    best_epoch: int
    best_value: float | None
    is_best: bool
    should_stop: bool

    @property
    def optimizer(self) -> Optimizer:
        """Optimiser of all parameters but those with natural gradients."""


class Callback:
    """Methods that :func:`~probattn.inference.fit` calls during a run, with PyTorch Lightning's names and arguments.

    Each gets the trainer, a :class:`Training`. A callback ends the run by ``trainer.should_stop = True``: after the
    present step, with the validation and the checkpoint of its epoch. In ``on_train_epoch_end`` it may set
    ``trainer.is_best``, which decides whose weights are kept.

    A callback with a state that has to survive an interruption has ``state_dict`` and ``load_state_dict``. Under
    torchrun, callbacks run on every rank. Any object with some of these methods is a callback, whatever its class.
    """

    def on_train_start(self, trainer: Training) -> None:
        """Run before the first epoch, or the first one after resuming."""

    def on_train_epoch_start(self, trainer: Training) -> None:
        """Run before each epoch."""

    def on_train_step_end(self, trainer: Training, outputs: Outcome) -> None:
        """Run after each training step.

        Args:
            trainer: the trainer.
            outputs: ``loss`` of the step in nats per example, and its ``terms``, as tensors on the device of this
                rank.
        """

    def on_train_epoch_end(self, trainer: Training, metrics: dict[str, float]) -> None:
        """Run after each epoch and its validation, before the checkpoint.

        Args:
            trainer: the trainer.
            metrics: ``train_loss`` and ``valid/METRIC``; entries that a callback adds are logged.
        """

    def on_train_end(self, trainer: Training) -> None:
        """Run after the last epoch; the weights are still those of the last epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: tensors, numbers, strings, and dicts and lists of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""


class Callbacks:
    """Callbacks of a run, called in their order.

    Args:
        callbacks: objects with some of the methods of :class:`Callback`.

    Raises:
        TypeError: an object without any of them.
    """

    def __init__(self, callbacks: tuple[Any, ...]) -> None:
        hooks = [name for name in vars(Callback) if name.startswith("on_")]
        for callback in callbacks:
            if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in hooks):
                what = callback.__name__ if isinstance(callback, type) else type(callback).__name__
                hint = f"pass an instance, {what}()" if isinstance(callback, type) else f"it needs {', '.join(hooks)}"
                raise TypeError(f"{what} is no callback ({hint}; see probattn.inference.Callback)")
        self.callbacks = callbacks

    def __len__(self) -> int:
        """Return the number of callbacks."""
        return len(self.callbacks)

    def call(self, hook: str, *args: Any) -> None:
        """Call a method of each callback that has it."""
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None:
                method(*args)

    def names(self) -> list[str]:
        """Return the class of each callback."""
        return [type(callback).__name__ for callback in self.callbacks]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of each callback."""
        return [each.state_dict() if hasattr(each, "state_dict") else {} for each in self.callbacks]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore the states that :meth:`state_dict` returned."""
        for callback, state in zip(self.callbacks, states, strict=True):
            if hasattr(callback, "load_state_dict"):
                callback.load_state_dict(state)
