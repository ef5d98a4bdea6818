"""Images and texts of a Hugging Face data set, on disk or by name."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probattn.experiments.data.images.files import read_pixels
from probattn.experiments.data.own.examples import Parts, choose_parts
from probattn.experiments.data.own.images import labelled_images
from probattn.experiments.data.own.rows import check_columns, labelled_rows, text_parts
from probattn.inference.imports import extra


def read_texts(source: Path, *, subset: str | None = None, **options: Any) -> Parts:
    """Read texts and labels.

    Args:
        source: folder that ``save_to_disk`` wrote, or a name that ``datasets.load_dataset`` takes.
        subset: name of the configuration, or None.
        options: as for :func:`~.rows.text_parts`.

    Raises:
        OSError: missing data.
        DatasetError: missing training split or columns, empty texts, labels that are missing; names the row.
    """
    return text_parts(_read_splits(source, subset), **options)


def read_images(
    source: Path,
    *,
    image_column: str = "image",
    label_column: str = "label",
    subset: str | None = None,
    **options: Any,
) -> Parts:
    """Read images and labels; errors as for :func:`read_texts` and images in folders.

    Args:
        source, options: as for :func:`read_texts`, and of :func:`~.images.labelled_images`.
        image_column: column of the images.
        label_column: column of the labels.
        subset: name of the configuration, or None.
    """
    given = {}
    for part, rows in _read_splits(source, subset).items():
        check_columns(rows, [image_column])
        given[part] = labelled_rows(rows, list(rows[image_column].items()), label_column)
    return labelled_images(given, read=_read_stored, **options)


def _read_stored(stored: tuple[str, Any], shape: tuple[int, int, int], **options: Any) -> np.ndarray:
    place, image = stored
    content = image or {"bytes": b""}  # of a missing image
    source = Path(content["path"]) if content["bytes"] is None else BytesIO(content["bytes"])
    return read_pixels(source, shape, place=place, **options)


def _read_splits(source: Path, subset: str | None) -> dict[str, pd.DataFrame]:
    """Read the split of each part; classes are texts, and images have ``bytes`` and ``path``."""
    with extra("huggingface", needed_by="a Hugging Face data set"):
        import datasets
    datasets.disable_progress_bars()
    is_saved = any(Path(source, name).exists() for name in ("dataset_dict.json", "state.json"))
    loaded = datasets.load_from_disk(source) if is_saved else datasets.load_dataset(Path(source).as_posix(), subset)
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    parts = {}
    for part, data in choose_parts(splits, source=source).items():
        places = [f"{source}, {part} part, row {number}" for number in range(len(data))]
        parts[part] = pd.DataFrame(data.to_dict(), index=places, dtype=object)
        for name, feature in data.features.items():
            if isinstance(feature, datasets.ClassLabel):  # a missing label is -1, which has no name
                parts[part][name] = parts[part][name].map(dict(enumerate(feature.names)))
    return parts
