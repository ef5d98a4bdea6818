"""Table of measurements for the terminal, at most 100 columns wide."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.table import Column, Table

_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "ms": lambda row: _short(row["ms"]),
    "quartiles": lambda row: "–".join(map(_short, row["quartiles"])),
    "ratio": lambda row: f"{row['ratio']:.3f}",
    "peak MiB": lambda row: _short(row["peak_mib"]),
    "ratio ": lambda row: f"{row['memory_ratio']:.3f}",
    "GFLOP/s": lambda row: _short(row["rate"] / 1e9),
    "share": lambda row: f"{row['share']:.0%}",
}


def table(result: dict[str, Any]) -> Table:
    """Return the table of a result with ``title`` and ``sections``; ratios are to the first case of a section."""
    columns = [Column(name, justify="right", no_wrap=True) for name in _COLUMNS]
    made = Table(Column("", max_width=26), *columns, title=result["title"], box=box.SIMPLE_HEAD, pad_edge=False)
    for section in result["sections"]:
        if section["title"]:
            made.add_row(f"[bold]{section['title']}[/]")
        for row in section["rows"]:
            made.add_row(*_cells(row))
        if section.get("exponents"):
            time, peak = (f"N^{section['exponents'][name]:.2f}" for name in ("time", "memory"))
            made.add_row("grows with", time, "", "", peak)
        made.add_section()
    return made


def _cells(row: dict[str, Any]) -> list[str]:
    if "left_out" in row:
        return [f"{row['case']}, {row['left_out']}"]
    return [row["case"], *(_cell(column, row) for column in _COLUMNS.values())]


def _cell(column: Callable[[dict[str, Any]], str], row: dict[str, Any]) -> str:
    """Format the column's value, or a dash if the row has none."""
    try:
        return column(row)
    except KeyError:
        return "–"


def _short(value: float) -> str:
    """Format with four digits, or three for small numbers."""
    return f"{value:.{2 if value < 10 else 1 if value < 1000 else 0}f}"
