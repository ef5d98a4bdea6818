"""Progress of a run on stderr: a bar in a terminal, a line for each epoch in a file."""

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm

ESTIMATED_AFTER = 10
"""Number of steps after which the time of a run is estimated; the first one is left out."""
LONG = 60.0
"""Runs that take less than this many seconds need no estimate."""
BAR = "{desc} |{bar}| {elapsed}<{remaining}{postfix}"


class Progress:
    """Progress of a run, whose bar fits into a terminal of 80 columns.

    Args:
        epochs: number of epochs.
        total: number of steps.
        initial: number of steps that are done.
        is_shown: False displays nothing.
    """

    def __init__(self, *, epochs: int, total: int, initial: int, is_shown: bool) -> None:
        is_terminal = sys.stderr.isatty()
        self._epochs = epochs
        self._steps = 0
        self._missing = total - initial
        self._started = 0.0
        self._is_shown = is_shown
        self._is_file = is_shown and not is_terminal
        self._bar = tqdm(
            total=total,
            initial=initial,
            disable=not is_shown or not is_terminal,
            bar_format=BAR,
            dynamic_ncols=True,
        )

    def end_step(self) -> None:
        """Count a step; after the first ones of a long run, print how long the others take."""
        self._bar.update()
        self._steps += 1
        self._missing -= 1
        if self._steps == 1:
            self._started = time.perf_counter()
        if self._steps == ESTIMATED_AFTER and self._is_shown:
            elapsed = time.perf_counter() - self._started
            seconds = elapsed / (ESTIMATED_AFTER - 1) * self._missing
            if seconds > LONG:
                text = tqdm.format_interval(seconds)
                tqdm.write(f"about {text} to go, without validation", file=sys.stderr)

    def end_epoch(self, number: int, metrics: Mapping[str, float], *, seconds: float) -> None:
        """Show an epoch's number, training loss and validation metrics."""
        title = f"epoch {number}/{self._epochs}"
        values = {name: f"{value:.3g}" for name, value in metrics.items()}
        if self._is_file:
            listed = ", ".join(f"{name} {value}" for name, value in values.items())
            print(f"{title}: {listed}, {seconds:.1f} s", file=sys.stderr, flush=True)
        short = [
            f"{name.removeprefix('valid/')} {value}"
            for name, value in values.items()
            if name.startswith("valid/")
        ]
        self._bar.set_description_str(title, refresh=False)
        self._bar.set_postfix_str("valid " + ", ".join(short) if short else "", refresh=False)

    def close(self) -> None:
        """End the bar."""
        self._bar.close()
