"""Images and texts of a Hugging Face data set, on disk or by name."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import FORMATS, pixels
from probattn.experiments.data.own import images, texts
from probattn.experiments.data.own.examples import Examples, Shares, shorten
from probattn.inference.imports import extra


class Splits(NamedTuple):
    """Names of the splits; a validation or test split of None is taken from the training split."""

    train: str
    valid: str | None
    test: str | None


def read_texts(
    source: str,
    *,
    text_column: str,
    label_column: str,
    subset: str | None,
    splits: Splits,
    shares: Shares,
    seed: int,
    limit: int | None,
) -> texts.TextParts:
    """Read texts and labels.

    Args:
        source: folder that ``save_to_disk`` wrote, or a name that ``datasets.load_dataset`` takes.
        text_column, label_column: columns of texts and labels.
        subset: name of the configuration, or None.
        splits: names of the splits.
        shares, seed, limit: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: the package is missing, or the data; missing columns, empty texts, labels that are missing; names
            the row.
    """
    given = {}
    for part, (split, data) in _load(source, subset, splits).items():
        _check_columns(data, source, text_column=text_column, label_column=label_column)
        places = _places(source, split, len(data))
        inputs = [_text(value, place, text_column) for value, place in zip(data[text_column], places, strict=True)]
        given[part] = Examples(inputs, _labels(data, label_column, places), places)
    return texts.from_examples(given, shares=shares, seed=seed, limit=limit)


def read_images(
    source: str,
    *,
    image_column: str,
    label_column: str,
    image_size: int,
    background: str = "white",
    subset: str | None,
    splits: Splits,
    shares: Shares,
    seed: int,
    limit: int | None,
) -> images.ImageParts:
    """Read images and labels; arguments and errors as for :func:`read_texts`, size and background as for folders."""
    datasets = _import()
    given, tables = {}, {}
    for part, (split, data) in _load(source, subset, splits).items():
        _check_columns(data, source, image_column=image_column, label_column=label_column)
        if not isinstance(data.features[image_column], datasets.Image):
            raise DatasetError(
                f"{source}, split {split}: the column {image_column!r} holds {data.features[image_column]}, expected "
                "images (datasets.Image)"
            )
        places = _places(source, split, len(data))
        tables[part] = data.cast_column(image_column, datasets.Image(decode=False))
        inputs = [(part, row) for row in range(len(data))]
        given[part] = Examples(inputs, _labels(data, label_column, places), places)
    decode = _decoder(tables, {part: each.places for part, each in given.items()}, image_column, image_size, background)
    return images.from_examples(given, decode=decode, shares=shares, seed=seed, limit=limit)


def _decoder(
    tables: dict[str, Any], places: dict[str, list[str]], column: str, size: int, background: str
) -> Callable[[tuple[str, int]], Any]:
    from PIL import Image

    def decode(at: tuple[str, int]) -> Any:
        part, row = at
        stored = tables[part][row][column]
        try:
            content = Path(stored["path"]) if stored["bytes"] is None else BytesIO(stored["bytes"])
            with Image.open(content, formats=tuple(FORMATS)) as image:
                return pixels(image, (3, size, size), background=background)
        except (TypeError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DatasetError(f"{places[part][row]}: cannot decode the image: {error}") from error

    return decode


def _load(source: str, subset: str | None, splits: Splits) -> dict[str, tuple[str, Any]]:
    """Return name and data of the split of each part."""
    datasets = _import()
    folder = Path(source)
    try:
        if folder.is_dir() and any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(source)
        else:
            loaded = datasets.load_dataset(source, subset)
    except Exception as error:  # of many classes, those of the network included
        reason = " ".join(str(error).split())
        raise DatasetError(
            f"cannot load the Hugging Face data set {source!r}: {reason}; give the folder that save_to_disk wrote, or "
            "a name of the hub with a network, with --data"
        ) from error
    by_name = dict(loaded) if isinstance(loaded, dict) else {splits.train: loaded}
    if splits.train not in by_name:
        raise DatasetError(
            f"{source} has no split {splits.train!r}; it has {shorten(list(by_name))}: set data.train_split"
        )
    names = {part: name for part, name in splits._asdict().items() if name in by_name}
    return {part: (name, by_name[name]) for part, name in names.items()}


def _import() -> Any:
    with extra("huggingface", needed_by="a Hugging Face data set"):
        import datasets
    datasets.disable_progress_bars()
    return datasets


def _check_columns(data: Any, source: str, **wanted: str) -> None:
    for setting, column in wanted.items():
        if column not in data.column_names:
            raise DatasetError(
                f"{source} has no column {column!r}; its columns are {shorten(data.column_names, most=20)}; choose one "
                f"with --set data.{setting}=NAME"
            )


def _places(source: str, split: str, number: int) -> list[str]:
    return [f"{source}, split {split}, row {row}" for row in range(number)]


def _text(value: object, place: str, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DatasetError(f"{place}: {column!r} is {'empty' if isinstance(value, str) else f'no text ({value!r})'}")
    return value.strip()


def _labels(data: Any, column: str, places: list[str]) -> list[str]:
    names = getattr(data.features[column], "names", None)
    return list(_named(data[column], names, places, column))


def _named(values: Any, names: list[str] | None, places: list[str], column: str) -> Iterator[str]:
    for value, place in zip(values, places, strict=True):
        is_class = isinstance(value, str | int) and not (isinstance(value, str) and not value.strip())
        if not is_class or (names is not None and not 0 <= value < len(names)):
            raise DatasetError(
                f"{place}: {column!r} is {value!r}, which is no class; choose splits with labels with "
                "--set data.valid_split=NAME or data.test_split=NAME (none: taken from the training split)"
            )
        yield str(value) if names is None else names[value]
