"""Tables and figures of the papers as data: models, rows, columns and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.evaluation.methods import POSTERIOR
from probattn.experiments.evaluation.metric_display import DISPLAY, MetricDisplay
from probattn.experiments.studies.paper_tables import PaperValue


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        subject: what is scored: ``test``, ``domain/NAME``, ``shift/CATEGORY`` (``shift/all``: over all corruptions),
            ``ood/SET/DETECTOR`` (``mean`` over sets, ``average`` over detectors), or ``log`` for the run's own log.
        metric: key of the metric.
        display: title, the paper's unit and direction.
        comparable: False for quantities of the machine, whose difference to the paper's means nothing.
    """

    subject: str
    metric: str
    display: MetricDisplay
    comparable: bool = True

    @property
    def key(self) -> str:
        """Name of the column in a table's numbers."""
        return f"{self.subject}:{self.metric}"


@dataclass(frozen=True)
class Model:
    """A preset with changed settings, ``key=value``, which is trained over seeds."""

    preset: str
    changes: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """Settings at full size, of seed 0."""
        return presets.preset(self.preset).with_changes(self.changes)


@dataclass(frozen=True)
class Row:
    """A row of a table: a model under a method, or the ensemble of its seeds; ``paper`` is the paper's row."""

    model: Model
    method: str = POSTERIOR
    is_ensemble: bool = False
    paper: str = ""


@dataclass(frozen=True)
class Part:
    """A block of a table, on one data set.

    Args:
        title: heading of the block.
        rows: our rows by name.
        columns: the columns.
        paper: the paper's numbers, row → key of a column → number; empty for a figure.
        corruptions, severities: of the corrupted test images; none for a block without shift.
        ood: names of OOD sets.
        baseline: row that the others are compared with, paired by seed.
        note: in what this block differs from the paper's experiment.
    """

    title: str
    rows: Mapping[str, Row]
    columns: tuple[Column, ...]
    paper: Mapping[str, Mapping[str, PaperValue]] = field(default_factory=dict)
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()
    ood: tuple[str, ...] = ()
    baseline: str = ""
    note: str = ""

    @property
    def data(self) -> str:
        """Name of the data set."""
        return next(iter(self.rows.values())).model.settings.data.name

    def paper_row(self, name: str) -> Mapping[str, PaperValue]:
        """Return the paper's numbers of one of our rows by column; empty where it has none."""
        return self.paper.get(self.rows[name].paper or name, {})


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper.

    Args:
        name: ``PAPER/table-1``.
        title: what it shows.
        source: its number and section in the paper.
        trials: the paper's number of seeds; None if it is not given.
        parts: its blocks; none if it is not reproduced.
        figure: kind of figure, key of :data:`~probattn.experiments.studies.reproduced_figures.FIGURES`; "" for a table.
        unavailable: why it is not reproduced here.
    """

    name: str
    title: str
    source: str
    trials: int | None = None
    parts: tuple[Part, ...] = ()
    figure: str = ""
    unavailable: str = ""


def columns_of(subject: str, *metrics: str) -> tuple[Column, ...]:
    """Return columns of metrics of one subject, with the display of this library."""
    return tuple(Column(subject, metric, DISPLAY[metric]) for metric in metrics)


def keys_of(columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Return the keys of columns."""
    return tuple(column.key for column in columns)
