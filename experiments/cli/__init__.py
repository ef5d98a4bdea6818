"""The ``probattn`` command.

May import every other room."""

import random

state = random.getstate()
import rich.style  # noqa: E402, F401 - which draws a random number

random.setstate(state)
