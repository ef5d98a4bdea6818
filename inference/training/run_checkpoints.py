"""Checkpoints of a run: the last epoch, from which it resumes, and the best one."""

import copy
from pathlib import Path
from typing import Any

from torch import nn

from probattn.inference.distributed.collectives import broadcast_result
from probattn.inference.io import checkpoint
from probattn.inference.training.best_weights import find_best, read_best
from probattn.inference.training.fingerprint import Fingerprint
from probattn.inference.training.options import TrainOptions

STATE = {
    "epoch": int,
    "step": int,
    "best_epoch": int,
    "best_value": float | int | None,
    "should_stop": bool,
    "optimizer": dict,
    "natural": list,
    "schedulers": list,
    "recipe": dict,
    "callbacks": list,
    "callback_names": list,
    "options": dict,
    "random": list,
    "value": float | int | None,
    "fingerprint": dict,
}
"""Types of the values of ``last.pt`` that a run resumes from."""


class RunCheckpoints:
    """``last.pt`` and ``best.pt`` in the folder of a run; without a folder, the best weights in memory.

    Args:
        folder: folder of the run, or None.
        model, guide: materialised modules.
    """

    def __init__(self, folder: Path | None, model: nn.Module, guide: nn.Module) -> None:
        self.folder, self.model, self.guide = folder, model, guide
        self._best: tuple[dict, dict] | None = None

    def save_last(self, state: dict[str, Any]) -> None:
        """Write weights and state of the last epoch.

        Raises:
            TypeError: an optimiser, a scheduler or a callback has a state that no checkpoint holds.
        """
        self._save("last.pt", **state)

    def keep_best(self, *, epoch: int, value: float | None) -> None:
        """Keep the weights of this epoch, after ``last.pt`` has them: a run that is killed in between has lost none."""
        if self.folder is not None:
            self._save("best.pt", epoch=epoch, value=value)
        else:
            self._best = copy.deepcopy((self.model.state_dict(), self.guide.state_dict()))

    def load_best(self) -> None:
        """Load the weights of the best epoch into model and guide.

        Raises:
            CheckpointError: ``best.pt`` is missing, damaged, or of another epoch.
        """
        if self.folder is not None:
            path = self.folder / "best.pt"
            checkpoint.restore(read_best(self.folder), self.model, self.guide, path=path)
        elif self._best is not None:
            self.model.load_state_dict(self._best[0])
            self.guide.load_state_dict(self._best[1])

    def read_last(
        self, *, options: TrainOptions, recipe: dict[str, str], callbacks: list[str], fingerprint: Fingerprint
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the content of ``last.pt``, if it is of the same run.

        Args:
            options: options of the run.
            recipe: types and settings of its optimisers and schedulers.
            callbacks: classes of its callbacks.
            fingerprint: of its data and settings.

        Returns:
            The content, and differences of the environment, for which the resumed run may differ.

        Raises:
            CheckpointError: a damaged checkpoint, or one of another run; names the differences.
        """
        path = self.folder / "last.pt"
        content = checkpoint.read(path)
        state = content["extra"]
        if "options" not in state:
            raise checkpoint.CheckpointError(f"{path} holds only weights, as best.pt does: no run resumes from them")
        checkpoint.check_extra(path, state, STATE)
        differences = options.differences(state["options"])
        now = recipe | {"callbacks": ", ".join(callbacks) or "none"}
        saved = state["recipe"] | {"callbacks": ", ".join(map(str, state["callback_names"])) or "none"}
        names = dict.fromkeys([*saved, *now])
        differences += [
            f"{name}: {saved.get(name)} → {now.get(name)}" for name in names if saved.get(name) != now.get(name)
        ]
        if differences:
            raise checkpoint.CheckpointError(
                f"{path} was trained with other options; resume with the same, or choose another folder:\n  "
                + "\n  ".join(differences)
            )
        checkpoint.check_architecture(content, self.model, self.guide, path=path)
        changed, environment = fingerprint.differences(state["fingerprint"])
        if changed:
            raise checkpoint.CheckpointError(
                f"{path} was trained with other data, loaders or settings of the model; resume with the same, or "
                "choose another folder:\n  " + "\n  ".join(changed[:20]) + ("\n  …" if len(changed) > 20 else "")
            )
        return content, environment

    def best_epoch(self, state: dict[str, Any]) -> tuple[int, float | None] | None:
        """Return epoch and monitored value of ``best.pt``, or None if it must be written from ``last.pt``."""

        def read() -> tuple[int, float | None] | None:
            best = find_best(self.folder, state)
            return None if best is None else (best["extra"]["epoch"], best["extra"].get("value"))

        return broadcast_result(read)

    def _save(self, name: str, **extra: Any) -> None:
        """Write a checkpoint on rank 0; all ranks wait for it."""
        broadcast_result(lambda: checkpoint.save(self.folder / name, self.model, self.guide, **extra))
