"""Options of KEP-SVGP attention and their bounds."""

from typing import Literal

from probattn.functional import ksvd

Pair = Literal["er", "ee", "rr"]
Mean = Literal["zero", "softmax"]

CHOICES = {"pair": ("er", "ee", "rr"), "penalty": ("example", "authors"), "mean": ("zero", "softmax")}
PENALTIES = {"example": ksvd.penalty, "authors": ksvd.penalty_of_mean}


def check(choices: dict[str, str], *, positive: dict[str, float | None], eta: float) -> None:
    """Check options of the layer by name.

    Args:
        choices: options of :data:`CHOICES`.
        positive: options that must be positive, or None where they are off.
        eta: weight of the KSVD penalty.

    Raises:
        ValueError: an option that is not one of its choices, or out of bounds.
    """
    for option, value in choices.items():
        if value not in CHOICES[option]:
            raise ValueError(f"{option} must be one of {', '.join(CHOICES[option])}, got {value!r}")
    for option, value in positive.items():
        if value is not None and not value > 0:
            raise ValueError(f"need {option} > 0, got {value}")
    if not eta >= 0:
        raise ValueError(f"need eta ≥ 0, got {eta}")
