"""Dates and times of a column, read by one format."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from probattn.experiments.data.tables.numbers import is_missing

_DATES = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d.%m.%y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d-%b-%Y",
)
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
# Formats as of ``strptime``, and ISO 8601 such as 2020-01-31 and 2020-01-31T12:30Z.
_FORMATS = ("ISO8601", *_DATES, *_TIMES, *map(" ".join, itertools.product(_DATES, _TIMES)))
_RATIO = re.compile(r"\d+:\d")  # such as 3:1, which is no time


def days(cells: Sequence[Any], form: str) -> np.ndarray:
    """Return days since 1970, with the time of day as a fraction, float64 (n,).

    NaN stands for what is missing, infinity for what is no such date. Times with a zone are those
    of UTC, and those without a date of 1 January 1900.
    """
    texts = pd.Series(cells, dtype=object).map(lambda cell: str(cell).strip())
    moments = pd.to_datetime(texts, format=form, errors="coerce", utc=True).dt.tz_localize(None)
    seconds = moments.to_numpy("datetime64[s]").astype(np.int64)
    values = np.where(moments.isna() | texts.str.fullmatch(_RATIO), np.inf, seconds / 86_400)
    return np.where(texts.map(is_missing), np.nan, values)


def find_formats(cells: Sequence[str]) -> list[str]:
    """Return the formats that read all cells, none of them missing; of those that agree the
    first."""
    found = dict[tuple, str]()
    for form in _FORMATS:
        if np.isfinite(days(cells[:1], form)).all():
            values = days(cells, form)
            if np.isfinite(values).all():
                found.setdefault(tuple(values), form)
    return list(found.values())
