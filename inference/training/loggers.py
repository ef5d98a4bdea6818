"""Loggers of a run: Lightning's protocol, and TensorBoard as the default."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    """Logger by Lightning Fabric's protocol, such as Lightning's ``CSVLogger``, ``WandbLogger`` or ``MLFlowLogger``."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Record metrics by name after a training step."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Record the options of the run; a logger that cannot may raise ``NotImplementedError``."""

    def finalize(self, status: str) -> None:
        """Finish the log; ``status`` is ``"success"``, ``"failed"`` or ``"aborted"``."""


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


def check_logger(logger: Any) -> None:
    """Check that an object has the methods of :class:`Logger`.

    Raises:
        TypeError: it lacks one.
    """
    missing = [
        name for name in ("log_metrics", "log_hyperparams", "finalize") if not callable(getattr(logger, name, None))
    ]
    if missing or isinstance(logger, type):
        what = logger.__name__ if isinstance(logger, type) else type(logger).__name__
        problem = "is a class: pass an instance" if isinstance(logger, type) else f"lacks {', '.join(missing)}"
        raise TypeError(f"loggers must follow Lightning Fabric's Logger protocol, and {what} {problem}")
