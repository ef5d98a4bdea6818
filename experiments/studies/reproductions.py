"""Registry of the papers' tables and figures."""

from difflib import get_close_matches

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.studies import cgp_entries, kep_svgp_entries
from probattn.experiments.studies.entries import Entry

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*kep_svgp_entries.ENTRIES, *cgp_entries.ENTRIES)}
"""All tables and figures of the two papers, by name."""


def find(name: str) -> Entry:
    """Return an entry.

    Raises:
        SettingsError: an unknown name; similar ones are suggested.
    """
    if name not in ENTRIES:
        near = get_close_matches(name, ENTRIES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(ENTRIES)};"
        raise SettingsError(f"unknown table or figure {name!r}; {hint} `probattn reproduce --list` lists all")
    return ENTRIES[name]
