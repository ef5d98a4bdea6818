"""The error of data that are missing or damaged."""


class DatasetError(RuntimeError):
    """A data set is missing, incomplete or damaged; the message names the place and the remedy."""
