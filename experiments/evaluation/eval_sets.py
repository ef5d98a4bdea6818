"""Test sets of a run by name: its own parts and other domains, corrupted images, out-of-distribution (OOD) images."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images import ood_sets as ood_datasets
from probattn.experiments.data.images.corrupted_sets import corrupted_sets
from probattn.experiments.data.images.corruptions import CORRUPTIONS, STANDARD
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset

SEVERITIES = (1, 2, 3, 4, 5)


def parse_corruptions(names: str) -> tuple[str, ...]:
    """Parse comma-separated names of corruptions, ``standard`` (the 15 of CIFAR-10-C) or ``all`` 19."""
    known = {"standard": STANDARD, "all": tuple(CORRUPTIONS)}
    return tuple(known.get(names) or (name.strip() for name in names.split(",")))


def parse_severities(numbers: str) -> tuple[int, ...]:
    """Parse comma-separated severities.

    Raises:
        SettingsError: something other than integers.
    """
    try:
        return tuple(dict.fromkeys(int(number) for number in numbers.split(",")))
    except ValueError as error:
        raise SettingsError(f"severities are comma-separated numbers from 1 to 5, got {numbers!r}") from error


@dataclass(frozen=True)
class TestSet:
    """A test set: functions that load or generate its images or texts, and return a digest that changes with them.

    ``source`` describes where corrupted images are from.
    """

    load: Callable[[], Images | Texts | Table]
    digest: Callable[[], str]
    source: str = ""


def own_sets(dataset: ImageDataset | TextDataset | TableDataset) -> dict[str, TestSet]:
    """Return the parts ``valid`` and ``test`` of a data set, and its other domains ``domain/NAME``."""
    parts = {"valid": dataset.valid, "test": dataset.test}
    parts |= {f"domain/{name}": part for name, part in dataset.domains.items()}
    return {name: _loaded(part) for name, part in parts.items()}


def shifted_sets(
    dataset: ImageDataset | TextDataset | TableDataset,
    *,
    root: Path | None,
    corruptions: Sequence[str],
    severities: Sequence[int],
) -> dict[str, TestSet]:
    """Return ``shift/CORRUPTION/SEVERITY``: the test part, corrupted.

    The data are checked here; the images are generated on demand.

    Raises:
        SettingsError: the data are texts.
        ValueError: an unknown corruption or severity.
        DatasetError: official files that are incomplete or damaged.
    """
    _check_images(dataset, "--shift corrupts images")
    source = corrupted_sets(dataset.name, dataset.test, root=root, corruptions=corruptions, severities=severities)
    return {
        f"shift/{corruption}/{severity}": TestSet(
            functools.partial(source.images, corruption, severity),
            functools.partial(source.digest, corruption, severity),
            source.source,
        )
        for corruption in corruptions
        for severity in severities
    }


def ood_sets(
    dataset: ImageDataset | TextDataset | TableDataset, names: Sequence[str], *, root: Path | None
) -> dict[str, TestSet]:
    """Return ``ood/NAME``: OOD images, read here. The name ``default`` stands for the default sets of the data set.

    Raises:
        SettingsError: the data are texts, or two names differ in their folders only.
        ValueError: an unknown name, or the data set itself.
        DatasetError: images that are missing or damaged.
    """
    if not names:
        return {}
    _check_images(dataset, "--ood takes images")
    channels, size = dataset.test.images.shape[1:3]
    each = dict.fromkeys(
        part for name in names for part in (ood_datasets.default_names(dataset.name) if name == "default" else (name,))
    )
    read = {
        name: ood_datasets.load(name, root=root, size=size, channels=channels, in_distribution=dataset.name)
        for name in each
    }
    found = {f"ood/{Path(name).resolve().name}": _loaded(images) for name, images in read.items()}
    if len(found) < len(read):
        raise SettingsError(f"OOD sets must differ in the last part of their names, got {', '.join(read)}")
    return found


def _loaded(part: Images | Texts | Table) -> TestSet:
    return TestSet(lambda: part, lambda: part.digest)


def _check_images(dataset: ImageDataset | TextDataset | TableDataset, requirement: str) -> None:
    if isinstance(dataset, TableDataset):
        raise SettingsError(f"{requirement}, and {dataset.name} is a table")
    if isinstance(dataset, TextDataset):
        also = f"; its other domains ({', '.join(dataset.domains)}) are always evaluated" if dataset.domains else ""
        raise SettingsError(f"{requirement}, and {dataset.name} is text{also}")
