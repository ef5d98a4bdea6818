"""Test sets of a run by name: its own parts and other domains, corrupted images,
out-of-distribution (OOD) images."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.dataset import Dataset, Part, digest
from probattn.experiments.data.images.corruptions import SEVERITIES, STANDARD, corrupted_sets
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.ood_sets import default_names, load


class TestSet(NamedTuple):
    """A test set: a function that loads or generates its examples, and a digest that changes with
    them.

    The digest of corrupted images begins with where they are from.
    """

    load: Callable[[], Part]
    digest: str


def eval_sets(
    dataset: Dataset,
    *,
    root: Path | None = None,
    shift: bool = False,
    corruptions: Sequence[str] = STANDARD,
    severities: Sequence[int] = SEVERITIES,
    ood: Sequence[str] = (),
) -> dict[str, TestSet]:
    """Return the test sets of a data set, whose data are checked here; corrupted images are
    generated on demand.

    Names are ``valid``, ``test``, ``domain/NAME``, ``shift/CORRUPTION/SEVERITY`` and ``ood/NAME``.

    Args:
        dataset: data set of a run.
        root: folder of the data sets.
        shift: add the test images under ``corruptions`` of these ``severities``.
        corruptions, severities: those of ``shift``.
        ood: names of OOD image sets, or folders of images; ``default`` stands for those of the data
            set.

    Raises:
        SettingsError: ``shift`` or ``ood`` for data that are no images; two OOD sets of one name.
        ValueError: an unknown corruption, severity or OOD set.
        DatasetError: images that are missing or damaged.
    """
    sets = {"valid": _loaded(dataset.valid), "test": _loaded(dataset.test)}
    sets |= {f"domain/{name}": _loaded(examples) for name, examples in dataset.domains.items()}
    if not (shift or ood):
        return sets
    if not isinstance(dataset, ImageDataset):
        raise SettingsError(
            f"--shift and --ood need images, and {dataset.name} has none: leave them out"
        )
    if shift:
        source, images = corrupted_sets(
            dataset.name,
            dataset.test,
            root=root,
            corruptions=corruptions,
            severities=severities,
        )
        for name, level in itertools.product(corruptions, severities):
            content = f"{source}: {digest(dataset.test.digest, name, level)}"
            sets[f"shift/{name}/{level}"] = TestSet(partial(images, name, level), content)
    sources: list[str] = []
    for name in ood:
        sources += default_names(dataset.name) if name == "default" else [name]
    for source in sources:
        channels, size = dataset.test.images.shape[1:3]
        name = Path(source).resolve().name
        if f"ood/{name}" in sets:
            raise SettingsError(f"two OOD sets are called {name}: rename a folder")
        examples = load(source, root=root, size=size, channels=channels)
        sets[f"ood/{name}"] = _loaded(examples)
    return sets


def _loaded(part: Part) -> TestSet:
    return TestSet(lambda: part, part.digest)
