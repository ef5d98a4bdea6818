"""Data sets of a run by its settings: known by name, a user's own, or returned by a user's function."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.config.data import OWN, DataSettings, OwnDataSettings, data_function
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset, Images, from_parts
from probattn.experiments.data.images.known_sets import load as load_images
from probattn.experiments.data.own import hugging_face_sets, images, rows
from probattn.experiments.data.preprocessing import PREPROCESSING, read_json
from probattn.experiments.data.tables import table_dataset
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text import text_dataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset

Dataset = ImageDataset | TextDataset | TableDataset
Part = Images | Texts | Table
# Readers of the classes and parts of a user's own images and texts, by the name of the data set.
READERS: dict[str, Callable[..., Any]] = {
    "image-folder": images.read,
    "image-hf": hugging_face_sets.read_images,
    "text-csv": partial(rows.read_texts, kind="csv"),
    "text-jsonl": partial(rows.read_texts, kind="jsonl"),
    "text-hf": hugging_face_sets.read_texts,
}
# Networks that take each kind of data.
NETWORKS = {"image": ("vit",), "text": ("text", "encoder"), "table": ("tabular",)}


def load_data(settings: Settings, root: Path | None) -> Dataset:
    """Load the data set of a run.

    Args:
        settings: of the run.
        root: folder of the data sets; of a user's own data their path, by default ``data.path``.

    Raises:
        SettingsError: the network does not suit the data; a pretrained encoder, or a user's own data, is not named.
        DatasetError: the data cannot be read.
    """
    data, network = settings.data, settings.network
    kind = data.name.partition("-")[0] if data.name in OWN else None
    if kind is not None and network.kind not in NETWORKS[kind]:
        raise SettingsError(f"data.name={data.name} does not suit network.kind={network.kind}")
    if network.kind == "encoder" and network.encoder is None:
        raise SettingsError("this preset trains a pretrained encoder: name its folder with --encoder FOLDER")
    if isinstance(data, OwnDataSettings):
        return _load_own(settings, root)
    if function := data_function(data.name):
        return _call(function, settings)
    options = {"root": root, "seed": data.seed, "limit": data.limit}
    if network.kind == "vit":
        return load_images(data.name, **options)
    return text_dataset.load(data.name, network, **options)


def blank_dataset(settings: Settings, folder: Path) -> Dataset:
    """Return a data set with the preprocessing of a folder, whose parts hold one blank example.

    Args:
        settings: settings of the run.
        folder: holds ``preprocessing.json``, and for texts ``tokenizer.json`` or ``encoder.json``.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    saved, labels, name = read_json(folder / PREPROCESSING), torch.zeros(1, dtype=torch.long), settings.data.name
    try:
        kind, classes = saved["kind"], tuple(saved["classes"])
        if kind == "images":
            blank = Images(torch.zeros(1, *saved["shape"], dtype=torch.uint8), labels)
            return ImageDataset(name, classes, *[blank] * 3, tuple(saved["mean"]), tuple(saved["std"]), augment=False)
        if kind == "table":
            encoding = TableEncoding.from_json(saved["columns"])
            blank = Table(torch.zeros(1, len(encoding.sizes)), labels if classes else torch.zeros(1, 1))
            scale = {} if classes else {key: float(saved[key]) for key in ("label_mean", "label_std")}
            return TableDataset(name, classes, *[blank] * 3, encoding, saved["label_column"], **scale)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DatasetError(f"the preprocessing in {folder} is damaged ({error!r}); restore it from a copy") from error
    blank = Texts(("text",), labels)
    return text_dataset.from_parts(name, classes, *[blank] * 3, network=settings.network).for_run(folder)


def _load_own(settings: Settings, root: Path | None) -> Dataset:
    """Load a user's own data from ``root``, or else from ``data.path``."""
    data, source = settings.data, settings.data.path if root is None else str(root)
    if source is None:
        raise SettingsError("name your data with --data PATH")
    options = _options(data, OwnDataSettings)
    options |= {"shares": {"valid": data.valid_share, "test": data.test_share}, "seed": data.seed, "limit": data.limit}
    if data.name == "table-csv":
        options = {name: value for name, value in options.items() if not name.startswith("likelihood")}
        return table_dataset.read(Path(source), name=data.name, **options)
    augment, is_hub = options.pop("augment", False), data.name.endswith("-hf")
    if is_hub:
        options["splits"] = {part: options.pop(f"{part}_split") for part in ("train", "valid", "test")}
    classes, *parts = READERS[data.name](source if is_hub else Path(source), **options)
    return _of_parts(settings, classes, parts, augment=augment)


def _call(function: Callable[..., Any], settings: Settings) -> Dataset:
    """Load data by a user's own function, which returns a data set, or the classes and three parts (inputs, labels).

    Inputs are images, uint8 ``(n, channels, height, width)``, or a list of texts; labels int64 ``(n,)``.

    Raises:
        SettingsError: it returns something else.
    """
    content = function(**_options(settings.data, DataSettings))
    if isinstance(content, Dataset):
        return content
    kind, convert = (Images, torch.as_tensor) if settings.network.kind == "vit" else (Texts, tuple)
    try:
        classes, *parts = content
        loaded = [kind(convert(inputs), torch.as_tensor(labels)) for inputs, labels in parts]
        return _of_parts(settings, tuple(classes), loaded)
    except (TypeError, ValueError) as error:
        form = "a data set, or (classes, (inputs, labels) of the training, the validation and the test part)"
        raise SettingsError(f"{settings.data.name} must return {form}: {error}") from error


def _of_parts(settings: Settings, classes: tuple[str, ...], parts: Sequence[Part], *, augment: bool = False) -> Dataset:
    if settings.network.kind == "vit":
        return from_parts(settings.data.name, classes, *parts, augment=augment)
    return text_dataset.from_parts(settings.data.name, classes, *parts, network=settings.network)


def _options(data: DataSettings, base: type) -> dict[str, Any]:
    """Return the settings of a data set that its base class does not have."""
    common = {field.name for field in fields(base)}
    return {name: value for name, value in vars(data).items() if name not in common}
