"""The record of a metric, from which monitors, columns of files, tables and reports come."""

import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import NamedTuple

_TOML = (files("probattn.inference.metrics") / "metrics.toml").read_text(encoding="utf-8")
_RECORDS = tomllib.loads(_TOML)


class Metric(NamedTuple):
    """A metric, declared once in ``metrics.toml``.

    Args:
        function: returns its value; the table of its kind says of which arguments.
        title: its name in tables.
        scale: factor that it is multiplied by in tables.
        higher_is_better: its direction; None without one, and then it selects no epoch.
        meaning: explanation in a report.
        in_tables: False if it is only computed and stored.
    """

    function: Callable[..., float]
    title: str
    scale: float
    higher_is_better: bool | None = None
    meaning: str = ""
    in_tables: bool = True


def table(kind: str, functions: Mapping[str, Callable[..., float]]) -> dict[str, Metric]:
    """Return the metrics of a kind by name, with their functions, in the order of
    ``metrics.toml``."""
    return {name: Metric(functions[name], **fields) for name, fields in _RECORDS[kind].items()}
