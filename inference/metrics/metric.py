"""The record of a metric, from which monitors, columns of files, tables and reports come."""

from collections.abc import Callable
from typing import NamedTuple


class Metric(NamedTuple):
    """A metric, declared once in the table of its kind.

    Args:
        function: returns its value; the table says of which arguments.
        title: its name in tables.
        scale: factor that it is multiplied by in tables.
        higher_is_better: its direction; None without one, and then it selects no epoch.
        meaning: explanation in a report.
        in_tables: False if it is only computed and stored.
    """

    function: Callable[..., float]
    title: str
    scale: float
    higher_is_better: bool | None
    meaning: str
    in_tables: bool = True
