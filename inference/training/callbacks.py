"""Callbacks of a run, with PyTorch Lightning's names."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probattn.inference.training.step import Outcome
    from probattn.inference.training.trainer import Trainer


class Callback:
    """Base class of objects whose methods :func:`~probattn.inference.fit` calls, with PyTorch
    Lightning's names.

    Each gets the :class:`~probattn.inference.training.trainer.Trainer`. A callback ends the run by
    ``trainer.should_stop = True``: after the present step, with the validation and the checkpoint
    of its epoch. In ``on_train_epoch_end`` it may set ``trainer.is_best``, which decides whose
    weights are kept.

    A callback with a state that has to survive an interruption has ``state_dict`` and
    ``load_state_dict``. Under torchrun, callbacks run on every rank.
    """

    def on_train_start(self, trainer: "Trainer") -> None:
        """Run before the first epoch, or the first one after resuming."""

    def on_train_epoch_start(self, trainer: "Trainer") -> None:
        """Run before each epoch."""

    def on_train_step_end(self, trainer: "Trainer", outputs: "Outcome") -> None:
        """Run after each training step.

        Args:
            trainer: the trainer.
            outputs: ``loss`` of the step in nats per example, and its ``terms``, as tensors on the
                device of this rank.
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
        """Return the state that a checkpoint holds: tensors, numbers, strings, and dicts and lists
        of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
