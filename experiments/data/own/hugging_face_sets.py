"""Splits of a Hugging Face data set, on disk or by name, and their images."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import FORMATS, pixels
from probattn.experiments.data.own import images
from probattn.experiments.data.own.examples import PARTS, Examples, Shares, find_parts, normal_name, shorten
from probattn.experiments.data.own.rows import Rows
from probattn.inference.imports import extra


class Splits(NamedTuple):
    """Names of the splits, or other usual names of these parts; one of None is taken from the training split."""

    train: str
    valid: str | None
    test: str | None


def read_splits(source: str, *, subset: str | None, splits: Splits) -> dict[str, Rows]:
    """Read the splits of a data set; classes are texts, and an image holds its ``bytes`` and ``path``.

    Args:
        source: folder that ``save_to_disk`` wrote, or a name that ``datasets.load_dataset`` takes.
        subset: name of the configuration, or None.
        splits: names of the splits.

    Raises:
        DatasetError: the data, or a split, are missing.
    """
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
    names = _split_names(list(by_name), splits, source)
    return {part: _rows(by_name[name], f"{source}, split {name}") for part, name in names.items()}


def read_images(
    source: str,
    *,
    image_column: str,
    label_column: str,
    image_size: int,
    subset: str | None,
    splits: Splits,
    shares: Shares,
    seed: int,
    limit: int | None,
) -> images.ImageParts:
    """Read images and labels; ``source``, ``subset`` and ``splits`` as for :func:`read_splits`, others as for folders.

    Raises:
        DatasetError: missing columns or labels, or an image that cannot be decoded; names the row.
    """
    given = {}
    for part, rows in read_splits(source, subset=subset, splits=splits).items():
        rows.check_columns(image_column=image_column, label_column=label_column)
        inputs = list(zip(rows.cells[image_column], rows.places, strict=True))
        given[part] = Examples(inputs, rows.labels(label_column), rows.places)

    def decode(stored: tuple[Any, str]) -> np.ndarray:
        from PIL import Image

        image, place = stored
        try:
            content = Path(image["path"]) if image["bytes"] is None else BytesIO(image["bytes"])
            with Image.open(content, formats=tuple(FORMATS)) as opened:
                return pixels(opened, (3, image_size, image_size))
        except (TypeError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DatasetError(f"{place}: cannot decode the image: {error}") from error

    return images.from_examples(given, decode=decode, shares=shares, seed=seed, limit=limit)


def _split_names(names: list[str], splits: Splits, source: str) -> dict[str, str]:
    """Return the split of each part: that of the name that was set, or else of a name with the same meaning."""
    chosen = {}
    for part, wanted in splits._asdict().items():
        if wanted is not None and wanted not in names and normal_name(wanted).casefold() in PARTS[part]:
            wanted = find_parts({name: name for name in names}).get(part, wanted if part == "train" else None)
        if wanted is not None and wanted not in names:
            raise DatasetError(f"{source} has no split {wanted!r}; it has {shorten(names)}: set data.{part}_split")
        if wanted is not None:
            chosen[part] = wanted
    return chosen


def _rows(data: Any, source: str) -> Rows:
    import datasets

    for name, feature in data.features.items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
    cells = data.to_pandas().astype(object)
    for name, feature in data.features.items():
        if isinstance(feature, datasets.ClassLabel):
            known = dict(enumerate(feature.names))
            cells[name] = [known.get(label) for label in cells[name]]
    return Rows(source, cells.where(cells.notna(), None), "row")
