"""Types of options that readers of data and settings share, with their bounds."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from probattn.inference.training.options import MAX_COUNT, MAX_SEED

# Type of a number of things; larger ones are mistakes, and do not fit the integers of PyTorch.
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
# Type of a seed of PyTorch's generators.
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]


def _columns(names: Any) -> Any:
    """Split a text with commas between names of columns."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


# Type of what separates the columns of a file.
Delimiter = Annotated[str, Field(min_length=1, max_length=1)]
# Type of names of columns, as a list or with commas between them.
Columns = Annotated[tuple[str, ...], BeforeValidator(_columns)]
