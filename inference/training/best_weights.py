"""The weights of a run's best epoch, in ``best.pt``, and whether they are those that ``last.pt`` names."""

from pathlib import Path
from typing import Any

from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError


def read_best(folder: Path) -> dict[str, Any]:
    """Return the content of ``best.pt`` of a run, which must agree with ``last.pt`` if that is there and intact.

    Raises:
        CheckpointError: missing, damaged, or not of the best epoch by ``last.pt``; says what to do.
    """
    best, state = folder / "best.pt", _state(folder)
    if state is None:
        if not best.exists():
            raise CheckpointError(
                f"{folder} has no best.pt: the run has finished no epoch; continue with train --resume"
            )
        content = checkpoint.read(best)
        checkpoint.check_extra(best, content["extra"], {"epoch": int})
        return content
    content = find_best(folder, state)
    if content is None:
        raise CheckpointError(
            f"{best} is missing, damaged or of an earlier epoch, but last.pt has the weights of its epoch "
            f"{state['best_epoch']}: resume the run (train --resume, or fit with resume=True), which writes it"
        )
    return content


def find_best(folder: Path, state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content of ``best.pt``, or None if its weights are those of ``last.pt`` and it must be written again.

    A file of the last epoch counts as the best epoch's: a user who has lost ``best.pt`` copies ``last.pt`` there.

    Args:
        folder: folder of the run.
        state: state of the run in ``last.pt``.

    Raises:
        CheckpointError: the weights of the best epoch are lost; says what to do.
    """
    path, best_epoch, last_epoch = folder / "best.pt", state["best_epoch"], state["epoch"]
    problem = "is missing"
    if path.exists():
        try:
            content = checkpoint.read(path)
            checkpoint.check_extra(path, content["extra"], {"epoch": int})
        except CheckpointError:
            problem = "is damaged"
        else:
            epoch = content["extra"]["epoch"]
            if epoch in (best_epoch, last_epoch):
                return content
            problem = f"has the weights of epoch {epoch}"
    if best_epoch == last_epoch:
        return None
    raise CheckpointError(
        f"{path} {problem}, and the best epoch of this run is {best_epoch}, whose weights are in no other file: put a "
        f"copy of the right best.pt there; or accept epoch {last_epoch}, the last one, as the best so far, by copying "
        f"{folder / 'last.pt'} to {path}, and resume; or train anew in another folder"
    )


def _state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the run in ``last.pt``, or None without such a file that is intact."""
    last = folder / "last.pt"
    try:
        state = checkpoint.read(last)["extra"]
        checkpoint.check_extra(last, state, {"epoch": int, "best_epoch": int})
    except CheckpointError:
        return None
    return state
