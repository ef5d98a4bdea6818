"""Collection of values over draws that run one after another."""

from collections import defaultdict

import torch
from torch import Tensor

from probattn.inference.prediction.latents import current_draw


class SequentialDraws:
    """Collects values draw by draw where a prediction runs its draws sequentially."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Tensor]] = defaultdict(list)

    def stack(self, name: str, value: Tensor) -> Tensor | None:
        """Return all draws ``(S, ...)`` at the last sequential draw, None before; if draws are joint, the value."""
        draw = current_draw()
        if draw is None:
            return value
        self.rows[name].append(value)
        return torch.stack(self.rows.pop(name)) if draw.row == draw.of - 1 else None
