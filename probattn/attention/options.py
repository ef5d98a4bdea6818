"""Options that several layers have: checks, and the signature of a layer that passes some on."""

import inspect
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


def full_signature(cls: type) -> inspect.Signature:
    """Return the signature of a class with its bases' options in place of ``**options``."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            own = inspect.signature(vars(base)["__init__"]).parameters
            parameters = parameters | {name: own[name] for name in own if name not in parameters}
            if "options" not in own:
                break
    named = [option for name, option in parameters.items() if name not in ("self", "options")]
    return inspect.Signature(named)
