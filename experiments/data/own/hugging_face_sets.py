"""Images and texts of a Hugging Face data set, on disk or by name."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import FORMATS, pixels
from probattn.experiments.data.own import images
from probattn.experiments.data.own.examples import PARTS, Examples, find_parts, normal_name, shorten
from probattn.experiments.data.own.rows import Rows
from probattn.experiments.data.own.texts import TextParts, text_parts
from probattn.inference.imports import extra


class Splits(NamedTuple):
    """Names of the splits, or of others with the same meaning; one of None is taken from the training split."""

    train: str
    valid: str | None
    test: str | None


def read_texts(source: str, *, subset: str | None, splits: Splits, **options: Any) -> TextParts:
    """Read texts and labels.

    Args:
        source: folder that ``save_to_disk`` wrote, or a name that ``datasets.load_dataset`` takes.
        subset: name of the configuration, or None.
        splits: names of the splits.
        options: as for :func:`~.texts.text_parts`.

    Raises:
        DatasetError: missing data, splits or columns, empty texts, labels that are missing; names the row.
    """
    return text_parts(_read_splits(source, subset, splits), **options)


def read_images(
    source: str,
    *,
    image_column: str,
    label_column: str,
    image_size: int,
    subset: str | None,
    splits: Splits,
    background: str = "white",
    **division: Any,
) -> images.ImageParts:
    """Read images and labels; arguments and errors as for :func:`read_texts` and images in folders."""
    given = {}
    for part, rows in _read_splits(source, subset, splits).items():
        rows.check_columns(image_column=image_column, label_column=label_column)
        inputs = list(zip(rows.cells[image_column], rows.places, strict=True))
        given[part] = Examples(inputs, rows.labels(label_column), rows.places)

    def decode(stored: tuple[Any, str]) -> np.ndarray:
        image, place = stored
        try:
            content = Path(image["path"]) if image["bytes"] is None else BytesIO(image["bytes"])
            with Image.open(content, formats=FORMATS) as opened:
                return pixels(opened, (3, image_size, image_size), background=background)
        except (TypeError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DatasetError(f"{place}: cannot decode the image: {error}") from error

    return images.from_examples(given, decode=decode, **division)


def _read_splits(source: str, subset: str | None, splits: Splits) -> dict[str, Rows]:
    """Read the split of each part; classes are texts, and images have ``bytes`` and ``path``."""
    with extra("huggingface", needed_by="a Hugging Face data set"):
        import datasets
    datasets.disable_progress_bars()
    is_saved = any(Path(source, name).exists() for name in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(source) if is_saved else datasets.load_dataset(source, subset)
    except Exception as error:  # of many classes, those of the network included
        raise DatasetError(
            f"cannot load the Hugging Face data set {source!r}: {' '.join(str(error).split())}; give the folder that "
            "save_to_disk wrote, or a name of the hub with a network, with --data"
        ) from error
    by_name = dict(loaded) if isinstance(loaded, dict) else {splits.train: loaded}
    parts = {}
    for part, name in splits._asdict().items():
        if name not in by_name and name is not None and normal_name(name).casefold() in PARTS[part]:
            name = find_parts({split: split for split in by_name}).get(part)
        if name not in by_name and (name is not None or part == "train"):
            raise DatasetError(f"{source} has no such split; it has {shorten(list(by_name))}: set data.{part}_split")
        if name is not None:
            parts[part] = _rows(by_name[name], f"{source}, split {name}")
    return parts


def _rows(data: Any, source: str) -> Rows:
    import datasets

    cells = {}
    for name, feature in data.features.items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
        cells[name] = list(data[name])
        if isinstance(feature, datasets.ClassLabel):
            known = dict(enumerate(feature.names))  # a missing label is -1
            cells[name] = [known.get(label) for label in cells[name]]
    return Rows(source, pd.DataFrame(cells, dtype=object), "row")
