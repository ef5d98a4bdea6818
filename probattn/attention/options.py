"""Checks of options that several layers have."""

from collections.abc import Iterable


def check_choice(option: str, value: object, choices: Iterable[str]) -> None:
    """Check that an option is one of its choices.

    Raises:
        ValueError: it is not; names the choices.
    """
    if value not in (choices := tuple(choices)):
        raise ValueError(f"{option} must be one of {', '.join(choices)}, got {value!r}")


def check_positive(**options: float | None) -> None:
    """Check that options are positive, or None where they are off.

    Raises:
        ValueError: one is not.
    """
    for option, value in options.items():
        if value is not None and not value > 0:
            raise ValueError(f"need {option} > 0, got {value}")


def dropout_rate(rate: float) -> float:
    """Return a dropout rate that is valid.

    Raises:
        ValueError: a rate outside [0, 1), or NaN, which ``nn.Dropout`` accepts.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"a dropout rate lies in [0, 1), got {rate}")
    return float(rate)
