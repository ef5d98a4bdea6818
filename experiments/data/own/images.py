"""A user's own images: in folders, one for each class, or in Hugging Face data sets."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from probattn.experiments.data.dataset import digest
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import (
    decode_all,
    find_files,
    is_hidden,
    is_image,
    path_text,
    read_pixels,
)
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.option_types import Count
from probattn.experiments.data.own.examples import (
    Parts,
    choose_parts,
    find_parts,
    labelled,
    normal_name,
    part_likeness,
    shorten,
)
from probattn.experiments.data.own.rows import check_columns, labelled_rows, read_splits

_log = logging.getLogger(__name__)


def read(path: Path, **options: Any) -> Parts:
    """Read ``PATH/train/CLASS/*.jpg``, with ``valid`` and ``test`` if they are there, or
    ``PATH/CLASS/*.jpg``.

    Parts have any of the names of :data:`~probattn.experiments.data.own.examples.PARTS`. All
    folders below that of a class belong to it, as for torchvision's ``ImageFolder``; hidden files,
    and files that are no images, are left out.

    Args:
        path: the folder.
        options: of :func:`labelled_images`.

    Raises:
        OSError: there is no such folder.
        DatasetError: a class without images; an image that cannot be decoded, or lies outside of
            the classes' folders; folders of parts without one for training, or with names that may
            be those of parts.
    """
    folders = _folders(path)
    parts = {"train": path}
    if _are_parts(folders, path):
        parts = choose_parts(folders, source=str(path))
    return labelled_images({role: list_images(folder) for role, folder in parts.items()}, **options)


def _are_parts(folders: Mapping[str, Path], path: Path) -> bool:
    """Return True for folders of parts, False for those of classes.

    A folder called ``dev`` or ``test`` that holds images, beside others that do, is that of a
    class.

    Raises:
        DatasetError: folders that may be either.
    """
    files = {name: _entries(folder, Path.is_file) for name, folder in folders.items()}
    with_images = {name for name in folders if any(map(is_image, files[name]))}
    if parts := find_parts(folders):
        if "train" in parts or len(parts) == len(folders) or with_images != folders.keys():
            return True
        _log.warning("classes, since they hold images: %s", shorten([*parts.values()]))
        return False
    # A name with a word of a part is that of a class if images lie there, and other names have no
    # such word.
    likeness = {name: part_likeness(name) for name in folders}
    classes = with_images if not all(likeness.values()) else ()
    similar = [name for name in folders if likeness[name] > (name in classes)]
    inside = Counter(itertools.chain.from_iterable(map(_folders, folders.values())))
    if not with_images and len(inside) > 1 and max(inside.values()) > 1:
        similar = list(folders)
    if similar:
        problem = f"{path}: {shorten(similar)} may be parts or classes"
        advice = (
            "call parts train, valid and test; give classes other names, and move their images up"
        )
        raise DatasetError(f"{problem}: {advice}")
    return False


def read_hub_images(
    source: Path,
    *,
    image_column: str = "image",
    label_column: str = "label",
    group_column: str | None = None,
    subset: str | None = None,
    **options: Any,
) -> Parts:
    """Read images and labels of a Hugging Face data set.

    Args:
        source: as for :func:`~probattn.experiments.data.own.rows.read_splits`.
        image_column: column of the images.
        label_column: column of the labels.
        group_column: column of groups that stay in one part, such as patients.
        subset: name of the configuration, or None.
        options: of :func:`labelled_images`.

    Raises:
        OSError: missing data.
        DatasetError: missing training split or columns, images that cannot be decoded, labels that
            are missing.
    """
    examples = {}
    for role, rows in read_splits(source, subset).items():
        check_columns(rows, [image_column])
        images = [_stored(*cell) for cell in rows[image_column].items()]
        examples[role] = labelled_rows(rows, images, label_column, group_column)
    return labelled_images(examples, **options)


def labelled_images(
    given: Mapping[str, pd.DataFrame],
    *,
    image_size: Count = 32,
    background: str = "white",
    **division: Any,
) -> Parts:
    """Return the parts of examples, whose inputs are decoded by threads.

    Args:
        given: examples by part, with sources as for
            :func:`~probattn.experiments.data.images.files.read_pixels`.
        image_size: height and width in pixels, to which images are scaled and cropped.
        background: colour that transparent images stand on, by name or as ``#rrggbb``.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.
    """
    decode = partial(read_pixels, shape=(3, image_size, image_size), background=background)
    examples = pd.concat(given)
    images = decode_all(decode, examples.input)
    examples = examples.assign(input=range(len(images)), key=list(map(digest, images)))
    parts = {role: examples.loc[role] for role in given}

    def convert(chosen: pd.Series, labels: Tensor) -> Images:
        return Images(images[chosen.to_list()], labels, files=tuple(chosen.index))

    return labelled(parts, convert, **division)


def list_images(folder: Path) -> pd.DataFrame:
    """Return the images of each class's folder as examples, whose inputs are paths."""
    found = list(find_files(folder))
    files = list(filter(is_image, found))
    if others := sorted(set(found) - set(files)):
        listed = shorten([file.name for file in others])
        _log.warning("%s: left out %s files that are no images: %s", folder, len(others), listed)
    if outside := [file for file in files if file.parent == folder]:
        raise DatasetError(f"{path_text(outside[0])} is in no folder of a class: move it")
    names = [file.relative_to(folder).parts[0] for file in files]
    empty = _folders(folder).keys() - set(names)
    if empty or not names:
        problem = (
            f"{folder} needs a folder of images for each class; empty: "
            f"{shorten(sorted(empty)) or 'all'}"
        )
        raise DatasetError(f"{problem}: add images, or remove the folder of the class")
    return pd.DataFrame(
        {"input": files, "label": list(map(normal_name, names))}, index=list(map(path_text, files))
    )


def _folders(path: Path) -> dict[str, Path]:
    return {entry.name: entry for entry in _entries(path, Path.is_dir)}


def _entries(path: Path, condition: Callable[[Path], bool]) -> list[Path]:
    entries = filter(condition, sorted(path.iterdir()))
    return [entry for entry in entries if not is_hidden(entry.name)]


def _stored(place: str, image: Mapping[str, Any] | None) -> Path | BytesIO:
    """Return the file of an image, or its content, which is empty for a missing image."""
    image = image or {"bytes": b""}
    if image["bytes"] is None:
        return Path(image["path"])
    content = BytesIO(image["bytes"])
    content.name = place
    return content
