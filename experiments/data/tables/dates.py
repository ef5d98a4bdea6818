"""Dates and times of a column, read by one format."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from probattn.experiments.data.tables.numbers import is_missing

_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y",
          "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y")  # fmt: skip
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p")
# Formats as of ``strptime``, and ISO 8601 such as 2020-01-31 and 2020-01-31T12:30Z.
FORMATS = ("ISO8601", *_DATES, *_TIMES, *map(" ".join, itertools.product(_DATES, _TIMES)))
_TIME = re.compile(r"\d?\d:\d\d\D?.*")


def days(cells: Sequence[Any], form: str) -> np.ndarray:
    """Return days since 1970, with times as fractions, float64 (n,); of times alone since 1970, too.

    NaN stands for what is missing, infinity for what is no such date. Times of a zone are those of UTC.
    """
    texts = pd.Series([str(cell).strip() for cell in cells], dtype=object)
    moments = pd.to_datetime(texts, format=form, errors="coerce", utc=True).dt.tz_localize(None)
    seconds = moments.to_numpy("datetime64[s]").astype(np.int64)
    values = np.where(moments.isna(), np.inf, seconds / 86_400)
    values[list(map(is_missing, cells))] = np.nan
    return values


def find_formats(cells: Sequence[str], preferred: str | None = None) -> list[str]:
    """Return the formats that read all cells, none of them missing; of those that agree the first.

    A preferred format that reads them is the only one.
    """
    found: dict[str, np.ndarray] = {}
    for form in (*filter(None, [preferred]), *FORMATS):
        is_time = form in _TIMES
        if np.isinf(days(cells[:1], form)).any() or (is_time and not all(map(_TIME.fullmatch, map(str, cells)))):
            continue
        values = days(cells, form)
        if form == preferred and np.isfinite(values).all():
            return [form]
        if np.isfinite(values).all() and not any(np.array_equal(values, other) for other in found.values()):
            found[form] = values
    return list(found)
