"""Dropout rates."""


def dropout_rate(rate: float) -> float:
    """Return a dropout rate that is valid.

    Raises:
        ValueError: a rate outside [0, 1), or NaN, which ``nn.Dropout`` accepts.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"a dropout rate lies in [0, 1), got {rate}")
    return float(rate)
