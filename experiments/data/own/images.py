"""A user's own images: in folders, one for each class, or in Hugging Face data sets."""

from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.config.validation import Count
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import decode_all, find_files, is_hidden, path_text, read_pixels
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.own.examples import Parts, choose_parts, find_parts, labelled, normal_name, shorten
from probattn.experiments.data.own.rows import check_columns, labelled_rows, read_splits


def read(path: Path, **options: Any) -> Parts:
    """Read ``PATH/train/CLASS/*.jpg``, with ``valid`` and ``test`` if they are there, or ``PATH/CLASS/*.jpg``.

    Parts have any of the names of :data:`~probattn.experiments.data.own.examples.PARTS`. All folders below that of a
    class belong to it, as for torchvision's ``ImageFolder``; hidden files are left out.

    Args:
        path: the folder.
        options: of :func:`labelled_images`.

    Raises:
        OSError: there is no such folder.
        DatasetError: a class without images; a file that is no image, cannot be decoded, or lies outside of the
            classes' folders; folders of parts without one for training.
    """
    folders = _folders(path)
    parts = choose_parts(folders, source=str(path)) if find_parts(folders) else {"train": path}
    return labelled_images({role: list_images(folder) for role, folder in parts.items()}, **options)


def read_hub_images(
    source: Path, *, image_column: str = "image", label_column: str = "label", subset: str | None = None, **options: Any
) -> Parts:
    """Read images and labels of a Hugging Face data set.

    Args:
        source: as for :func:`~probattn.experiments.data.own.rows.read_splits`.
        image_column: column of the images.
        label_column: column of the labels.
        subset: name of the configuration, or None.
        options: of :func:`labelled_images`.

    Raises:
        OSError: missing data.
        DatasetError: missing training split or columns, images that cannot be decoded, labels that are missing.
    """
    examples = {}
    for role, rows in read_splits(source, subset).items():
        check_columns(rows, [image_column])
        examples[role] = labelled_rows(rows, [_stored(*cell) for cell in rows[image_column].items()], label_column)
    return labelled_images(examples, **options)


def labelled_images(
    given: Mapping[str, pd.DataFrame], *, image_size: Count = 32, background: str = "white", **division: Any
) -> Parts:
    """Return the parts of examples, whose inputs are decoded by threads.

    Args:
        given: examples by part, with sources as for :func:`~probattn.experiments.data.images.files.read_pixels`.
        image_size: height and width in pixels, to which images are scaled and cropped.
        background: colour that transparent images stand on, by name or as ``#rrggbb``.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.
    """
    decode = partial(read_pixels, shape=(3, image_size, image_size), background=background)
    return labelled(given, lambda inputs, labels: Images(decode_all(decode, inputs), labels), **division)


def list_images(folder: Path) -> pd.DataFrame:
    """Return the images of each class's folder as examples, whose inputs are paths."""
    files = list(find_files(folder))
    if outside := [file for file in files if file.parent == folder]:
        raise DatasetError(f"{path_text(outside[0])} is in no folder of a class: move it")
    names = [file.relative_to(folder).parts[0] for file in files]
    empty = _folders(folder).keys() - set(names)
    if empty or not names:
        problem = f"{folder} needs a folder of images for each class; empty: {shorten(sorted(empty)) or 'all'}"
        raise DatasetError(f"{problem}: add images, or remove the folder of the class")
    return pd.DataFrame({"input": files, "label": list(map(normal_name, names))}, index=list(map(path_text, files)))


def _folders(path: Path) -> dict[str, Path]:
    return {entry.name: entry for entry in sorted(path.iterdir()) if entry.is_dir() and not is_hidden(entry.name)}


def _stored(place: str, image: Mapping[str, Any] | None) -> Path | BytesIO:
    """Return the file of an image, or its content, which is empty for a missing image."""
    image = image or {"bytes": b""}
    if image["bytes"] is None:
        return Path(image["path"])
    content = BytesIO(image["bytes"])
    content.name = place
    return content
