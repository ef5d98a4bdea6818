"""Places in which data sets are looked for, so that a missing one can be named without a download."""

from pathlib import Path
from typing import NamedTuple

from torchvision.datasets import SVHN

from probattn.experiments.data.images.cifar import CIFAR
from probattn.experiments.data.images.ood_sets import ARCHIVES


class Place(NamedTuple):
    """Paths under the root folder, any of which holds a data set, and its source."""

    paths: tuple[str, ...]
    source: str


PLACES: dict[str, Place] = {
    "cola": Place(
        ("cola_public/raw", "raw", "cola_public.zip", "cola_public_1.1.zip"),
        "cola_public_1.1.zip from https://nyu-mll.github.io/CoLA",
    ),
    "imdb": Place(
        ("aclImdb", "aclImdb.tar.xz", "aclImdb_v1.tar.gz"),
        "aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment",
    ),
    "svhn": Place(
        tuple(f"{folder}{SVHN.split_list['test'][1]}" for folder in ("svhn/", "")), "downloaded if there is a network"
    ),
    **{
        name: Place(
            (spec.source.base_folder, f"{name}-jpeg/train", f"{name}/train"), "downloaded if there is a network"
        )
        for name, spec in CIFAR.items()
    },
    **{
        name: Place((archive.folder,), "downloaded by pytorch-ood if there is a network")
        for name, archive in ARCHIVES.items()
    },
    "lsun": Place((ARCHIVES["lsun"].folder,), "the test images of LSUN's database, exported by its authors' script"),
}
"""Data sets of files, by name; others are installed or generated."""


def missing(name: str, root: Path) -> str:
    """Return in words where a data set is looked for and where it comes from; an empty text if it is there.

    Only the paths are checked, not their content.
    """
    place = PLACES.get(name)
    if place is None or any((root / path).exists() for path in place.paths):
        return ""
    return f"{name} is not in {root.absolute()} ({', '.join(place.paths)}; {place.source})"
