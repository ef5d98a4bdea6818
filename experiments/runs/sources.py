"""Data sets of a run by its settings: known by name, a user's own, or returned by a user's function."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.config.data import DataSettings, OwnDataSettings
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.dataset import Dataset, read_preprocessing
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset, Images
from probattn.experiments.data.images.image_datasets import from_parts as images_from_parts
from probattn.experiments.data.images.known_sets import load as load_images
from probattn.experiments.data.own.examples import Parts
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text import text_dataset
from probattn.experiments.data.text.labelled_texts import Texts

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
    kind = data.name.partition("-")[0] if isinstance(data, OwnDataSettings) else None
    if kind is not None and network.kind not in NETWORKS[kind]:
        raise SettingsError(f"data.name={data.name} does not suit network.kind={network.kind}")
    if network.kind == "encoder" and network.encoder is None:
        raise SettingsError("this preset trains an encoder: name its folder with --set network.encoder=FOLDER")
    if type(data).reader is None:
        options = {"root": root, "seed": data.seed, "limit": data.limit}
        if network.kind == "vit":
            return load_images(data.name, **options)
        return text_dataset.load(data.name, network, **options)
    content = _read(data, root)
    if isinstance(content, Dataset):
        return content
    classes, *parts = content if isinstance(data, OwnDataSettings) else _converted(settings, content)
    if network.kind == "vit":
        return images_from_parts(data.name, classes, *parts, augment=getattr(data, "augment", False))
    return text_dataset.from_parts(data.name, classes, *parts, network=network)


def blank_dataset(settings: Settings, folder: Path) -> Dataset:
    """Return a data set with the preprocessing of a folder, whose parts hold one blank example.

    Args:
        settings: settings of the run.
        folder: holds ``preprocessing.json``.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    saved, labels, name = read_preprocessing(folder), torch.zeros(1, dtype=torch.long), settings.data.name
    try:
        kind, classes = saved["kind"], tuple(saved["classes"])
        if kind == "images":
            blank = Images(torch.zeros(1, *saved["shape"], dtype=torch.uint8), labels)
            return ImageDataset(name, classes, *[blank] * 3, tuple(saved["mean"]), tuple(saved["std"]), augment=False)
        if kind == "table":
            encoding = TableEncoding.from_json(saved["columns"])
            blank = Table(torch.zeros(1, len(encoding.sizes)), labels)
            about = saved["label_column"], float(saved["label_mean"]), float(saved["label_std"])
            return TableDataset(name, classes, *[blank] * 3, encoding, *about)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DatasetError(f"the preprocessing in {folder} is damaged ({error!r}); restore it from a copy") from error
    blank = Texts(("text",), labels)
    return text_dataset.from_parts(name, classes, *[blank] * 3, network=settings.network).for_run(folder)


def _read(data: DataSettings, root: Path | None) -> Any:
    """Call the reader of a user's own data with the settings that are its options."""
    common = {field.name for field in fields(type(data).__base__)}
    options = {name: value for name, value in vars(data).items() if name not in common}
    if not isinstance(data, OwnDataSettings):
        return type(data).reader(**options)
    source = data.path if root is None else str(root)
    if source is None:
        raise SettingsError("name your data with --data PATH")
    shares, is_hub = {"valid": data.valid_share, "test": data.test_share}, data.name.endswith("-hf")
    place = source if is_hub else Path(source)
    return type(data).reader(place, shares=shares, seed=data.seed, limit=data.limit, **options)


def _converted(settings: Settings, content: Any) -> Parts:
    """Return the classes and three parts that a user's function gives as inputs and labels.

    Inputs are images, uint8 ``(n, channels, height, width)``, or a list of texts; labels int64 ``(n,)``.

    Raises:
        SettingsError: the content has another form.
    """
    kind, convert = (Images, torch.as_tensor) if settings.network.kind == "vit" else (Texts, tuple)
    try:
        classes, *given = content
        return tuple(classes), *(kind(convert(inputs), torch.as_tensor(labels)) for inputs, labels in given)
    except (TypeError, ValueError) as error:
        form = "a data set, or (classes, (inputs, labels) of the training, the validation and the test part)"
        raise SettingsError(f"{settings.data.name} must return {form}: {error}") from error
