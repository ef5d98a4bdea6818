"""The sets of images that a run is evaluated on: its own, shifted ones, and foreign ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from probattn.experiments.corruptions import CORRUPTIONS, STANDARD
from probattn.experiments.datasets import ImageDataset
from probattn.experiments.images import Images
from probattn.experiments.outliers import default, outliers
from probattn.experiments.settings import SettingsError
from probattn.experiments.shift import shifted

SEVERITIES = (1, 2, 3, 4, 5)


def corruptions(names: str) -> tuple[str, ...]:
    """Names with commas between, ``standard`` (the 15 of CIFAR-10-C) or ``all`` 19."""
    known = {"standard": STANDARD, "all": tuple(CORRUPTIONS)}
    return tuple(known.get(names) or (name.strip() for name in names.split(",")))


def severities(numbers: str) -> tuple[int, ...]:
    """Numbers with commas between.

    Raises:
        SettingsError: other words.
    """
    try:
        return tuple(dict.fromkeys(int(number) for number in numbers.split(",")))
    except ValueError as error:
        raise SettingsError(f"severities are numbers from 1 to 5 with commas between, got {numbers!r}") from error


@dataclass(frozen=True)
class ImageSet:
    """Where images come from, in words, and how they are made."""

    origin: str
    make: Callable[[], Images]


def own(dataset: ImageDataset) -> dict[str, ImageSet]:
    """The validation and the test part of a data set."""
    return {
        "valid": ImageSet("the run's", lambda: dataset.valid),
        "test": ImageSet("the run's", lambda: dataset.test),
    }


def shifts(
    dataset: ImageDataset,
    *,
    root: Path | None,
    corruptions: Sequence[str],
    severities: Sequence[int],
) -> dict[str, ImageSet]:
    """``shift/CORRUPTION/SEVERITY``: the test part, corrupted. The data are checked here, the images made later.

    Raises:
        ValueError: an unknown corruption or severity.
        DatasetError: official files that are incomplete or damaged.
    """
    source = shifted(dataset.name, dataset.test, root=root, corruptions=corruptions, severities=severities)
    return {
        f"shift/{corruption}/{severity}": ImageSet(source.source, lambda c=corruption, s=severity: source.images(c, s))
        for corruption in corruptions
        for severity in severities
    }


def foreign(dataset: ImageDataset, names: Sequence[str], *, root: Path | None) -> dict[str, ImageSet]:
    """``ood/NAME``: images of another kind, read here; the name ``default`` stands for those that suit the data set.

    Raises:
        ValueError: an unknown name, or the data set itself.
        DatasetError: images that are missing or damaged.
    """
    channels, size = dataset.test.images.shape[1:3]
    each = dict.fromkeys(part for name in names for part in (default(dataset.name) if name == "default" else (name,)))
    read = {name: outliers(name, root=root, size=size, channels=channels, inside=dataset.name) for name in each}
    found = {f"ood/{Path(name).resolve().name}": ImageSet(name, lambda i=images: i) for name, images in read.items()}
    if len(found) < len(read):
        raise SettingsError(f"foreign sets must differ in the last part of their names, got {', '.join(read)}")
    return found
