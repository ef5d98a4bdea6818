"""Images and texts of a Hugging Face data set, on disk or by name."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import read_pixels
from probattn.experiments.data.own.examples import PARTS, Parts, find_parts, normal_name, shorten
from probattn.experiments.data.own.images import labelled_images
from probattn.experiments.data.own.rows import check_columns, names, text_parts
from probattn.inference.imports import extra

Splits = Mapping[str, str | None]


def read_texts(source: str, *, subset: str | None = None, splits: Splits, **options: Any) -> Parts:
    """Read texts and labels.

    Args:
        source: folder that ``save_to_disk`` wrote, or a name that ``datasets.load_dataset`` takes.
        subset: name of the configuration, or None.
        splits: names of the splits by part, or of others with the same meaning; one of None is taken from the training
            split.
        options: as for :func:`~.rows.text_parts`.

    Raises:
        DatasetError: missing data, splits or columns, empty texts, labels that are missing; names the row.
    """
    return text_parts(_read_splits(source, subset, splits), **options)


def read_images(
    source: str,
    *,
    image_column: str = "image",
    label_column: str = "label",
    subset: str | None = None,
    splits: Splits,
    **options: Any,
) -> Parts:
    """Read images and labels; errors as for :func:`read_texts` and images in folders.

    Args:
        source, splits, options: as for :func:`read_texts`, and of :func:`~.images.labelled_images`.
        image_column: column of the images.
        label_column: column of the labels.
        subset: name of the configuration, or None.
    """
    given = {}
    for part, rows in _read_splits(source, subset, splits).items():
        check_columns(rows, image_column=[image_column], label_column=[label_column])
        content = {"input": list(rows[image_column].items()), "label": names(rows, label_column)}
        given[part] = pd.DataFrame(content, index=rows.index)
    return labelled_images(given, read=_read_stored, **options)


def _read_stored(stored: tuple[str, Any], shape: tuple[int, int, int], **options: Any) -> np.ndarray:
    place, image = stored
    if image is None:
        raise DatasetError(f"{place} holds no image; remove the row")
    source = Path(image["path"]) if image["bytes"] is None else BytesIO(image["bytes"])
    return read_pixels(source, shape, place=place, **options)


def _read_splits(source: str, subset: str | None, splits: Splits) -> dict[str, pd.DataFrame]:
    """Read the split of each part; classes are texts, and images have ``bytes`` and ``path``."""
    with extra("huggingface", needed_by="a Hugging Face data set"):
        import datasets
    datasets.disable_progress_bars()
    is_saved = any(Path(source, name).exists() for name in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(source) if is_saved else datasets.load_dataset(source, subset)
    except Exception as error:  # of many classes, those of the network included
        problem = f"cannot load the Hugging Face data set {source!r}: {' '.join(str(error).split())}"
        raise DatasetError(f"{problem}; name the folder of save_to_disk, or a name of the hub, with --data") from error
    by_name = dict(loaded) if isinstance(loaded, dict) else {splits["train"]: loaded}
    parts = {}
    for part, name in splits.items():
        if name is not None and name not in by_name and normal_name(name).casefold() in PARTS[part]:
            name = find_parts({split: split for split in by_name}).get(part)
        if name in by_name:
            parts[part] = _rows(by_name[name], f"{source}, split {name}")
        elif name is not None or part == "train":
            raise DatasetError(f"{source} has no such split; it has {shorten(list(by_name))}: set data.{part}_split")
    return parts


def _rows(data: Any, source: str) -> pd.DataFrame:
    import datasets

    cells = {}
    for name, feature in data.features.items():
        stored = data.cast_column(name, datasets.Image(decode=False)) if isinstance(feature, datasets.Image) else data
        cells[name] = list(stored[name])
        if isinstance(feature, datasets.ClassLabel):
            known = dict(enumerate(feature.names))  # a missing label is -1
            cells[name] = [known.get(label) for label in cells[name]]
    return pd.DataFrame(cells, index=[f"{source}, row {number}" for number in range(len(data))], dtype=object)
