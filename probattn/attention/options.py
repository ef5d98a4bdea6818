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
    """Return the signature of a class with its bases' keyword-only options in place of
    ``**options``."""
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    _, *parameters = inspect.signature(inits[0]).parameters.values()
    passed_on = (inspect.Parameter.VAR_KEYWORD, "options")
    for init in inits[1:]:
        if not parameters or (parameters[-1].kind, parameters[-1].name) != passed_on:
            break
        parameters.pop()
        known = {parameter.name for parameter in parameters}
        for parameter in inspect.signature(init).parameters.values():
            is_option = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
            if is_option and parameter.name not in known:
                parameters.append(parameter)
    return inspect.Signature(parameters)
