"""Result of one evaluated run: everything that a report displays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from probattn.experiments.evaluation.decisions import Decisions, Intervals
from probattn.inference import Prediction
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.diagnostics.convergence import SiteConvergence
from probattn.inference.training.options import TrainOptions


@dataclass(frozen=True)
class RunResult:
    """Everything that a report displays of one evaluated run, without its model.

    Terms of the objective are per example, in nats, loss = nll + Σ kl + Σ penalty; metrics are unscaled, as
    ``metrics.evaluate`` returns them. A part that the run lacks is an empty container, and the report says so.
    """

    name: str
    command: str
    settings: dict[str, object]
    metrics: dict[str, float]
    steps: list[dict]  # step, epoch, loss, nll, kl/SITE…, penalty/SITE…, lr
    epochs: list[dict]  # epoch, step, valid/accuracy, valid/nll, …, seconds
    probs: Tensor | None  # (n, classes); None for regression
    labels: Tensor  # (n,), (n, 1) for regression
    images: Tensor  # uint8 (n, channels, H, W); empty if the data are not images
    classes: tuple[str, ...]
    spectra: dict[str, Spectrum]  # by layer
    posterior: list[SiteConvergence]  # of posterior_summary
    variants: dict[str, dict[str, float]]  # metrics with each latent site "at its mean", "drawn from q", …
    similarity: dict[str, float] = field(default_factory=dict)  # layer → mean cosine between its tokens, in depth order
    shift: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)  # corruption → severity → metrics
    shift_source: str = ""  # where the corrupted images are from
    decisions: Decisions | Intervals | None = None  # abstention and conformal sets, or intervals of a regression
    ood: dict[str, Prediction] = field(default_factory=dict)  # OOD set → predictions of its images
    domains: dict[str, dict[str, float]] = field(default_factory=dict)  # other domain → metrics
    texts: tuple[str, ...] = ()  # n texts if the data are texts
    numbers: Prediction | None = None  # predictions of a regression
    is_table: bool = False  # neither images nor texts
    convergence: list[SiteConvergence] | None = None  # None without global latent variables, or if it was not measured
    spread: dict[str, float] | None = None  # entropy and mutual information of validation data; None for regression
    by_class: Sequence[Mapping[str, Any]] = ()  # class, count, accuracy, coverage of sets, …
    unfinished: str = ""  # "30 of 40 epochs" if training was stopped early, see describe_unfinished

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.probs is None:
            if self.numbers is None or len(self.numbers.mean) != n:
                raise ValueError(f"run {self.name!r}: {n} labels need as many probs or numbers")
            return
        if self.probs.ndim != 2 or len(self.probs) != n or (self.images.numel() and len(self.images) != n):
            shapes = f"probs {tuple(self.probs.shape)}, images {tuple(self.images.shape)}"
            raise ValueError(f"run {self.name!r}: {n} labels need as many probs and images, got {shapes}")
        if len(self.classes) != self.probs.shape[1]:
            raise ValueError(f"run {self.name!r}: {self.probs.shape[1]} classes, {len(self.classes)} names")

    @property
    def label(self) -> str:
        """Name for tables and figures, with the epochs of a run that was stopped early."""
        return f"{self.name} ({self.unfinished})" if self.unfinished else self.name

    @property
    def has_predictions(self) -> bool:
        """True if there is at least one prediction of classes and all probabilities are finite."""
        return self.probs is not None and len(self.labels) > 0 and bool(self.probs.isfinite().all())


def last_epoch(records: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the last epoch of the records of a run's log; None without an epoch."""
    return max((record["epoch"] for record in records if record["kind"] == "epoch"), default=None)


def describe_unfinished(options: TrainOptions, *, epochs_done: int | None, best_epoch: int) -> str:
    """Return "30 of 40 epochs" for a run that was stopped before its last epoch, else an empty string.

    Args:
        options: the run's options; training that ended by ``patience`` is finished.
        epochs_done: finished epochs; None if they are unknown.
        best_epoch: the epoch with the best validation metric.
    """
    if epochs_done is None or epochs_done >= options.epochs:
        return ""
    if options.patience is not None and epochs_done - best_epoch >= options.patience:
        return ""
    return f"{epochs_done} of {options.epochs} epochs"
