"""Data sets of a run by its settings: known by name, a user's own, or returned by a user's
function."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch

from probattn.experiments.config.data import NAMES, DataSettings, OwnDataSettings
from probattn.experiments.config.schema import options_of
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.dataset import PREPROCESSING, Dataset, read_preprocessing
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset, Images, from_parts
from probattn.experiments.data.images.known_sets import load as load_images
from probattn.experiments.data.summary import collect_notes
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text import text_dataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.inference.io.files import undamaged

# Networks that take each kind of data.
NETWORKS = {"image": ("vit",), "text": ("text", "encoder"), "table": ("tabular",)}


def load_data(settings: Settings, root: Path | None) -> Dataset:
    """Load the data set of a run, with what its readers say in its ``notes``.

    Args:
        settings: of the run.
        root: folder of the data sets; of a user's own data their path, by default ``data.path``.

    Raises:
        SettingsError: the network does not suit the data; a pretrained encoder, or a user's own
            data, is not named.
        DatasetError: the data cannot be read.
    """
    with collect_notes() as notes:
        dataset = _load(settings, root)
    return replace(dataset, notes=(*dataset.notes, *notes)) if notes else dataset


def _load(settings: Settings, root: Path | None) -> Dataset:
    data = settings.data
    network = settings.network
    kind = "text" if data.name in text_dataset.NAMES else "image"
    if isinstance(data, OwnDataSettings):
        kind = data.name.partition("-")[0]
    if data.name in NAMES and network.kind not in NETWORKS[kind]:
        raise SettingsError(f"data.name={data.name} does not suit network.kind={network.kind}")
    if network.kind == "encoder" and getattr(network, "encoder", None) is None:
        raise SettingsError(
            "this preset trains an encoder: name its folder with --set network.encoder=FOLDER"
        )
    if type(data).constructor is None:
        options: dict[str, Any] = {"root": root, "seed": data.seed, "limit": data.limit}
        if network.kind == "vit":
            return load_images(data.name, **options)
        return text_dataset.load(data.name, network, **options)
    content = _read(data, root)
    if isinstance(content, Dataset):
        return content
    classes, *parts = content
    if network.kind == "vit":
        augmentation = {name: getattr(data, name, False) for name in ("augment", "flip")}
        return from_parts(data.name, classes, *parts, **augmentation)
    return text_dataset.from_parts(data.name, classes, *parts, network=network)


def blank_dataset(settings: Settings, folder: Path) -> Dataset:
    """Return a data set with the preprocessing of a folder, whose parts hold one blank example.

    Args:
        settings: settings of the run.
        folder: holds ``preprocessing.json``.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    with undamaged(folder / PREPROCESSING, DatasetError, passing=(DatasetError, ImportError)):
        saved = read_preprocessing(folder)
        labels = torch.zeros(1, dtype=torch.long)
        name = settings.data.name
        content = saved["kind"]
        classes = tuple(saved["classes"])
        if content == "images":
            image = Images(torch.zeros(1, *saved["shape"], dtype=torch.uint8), labels)
            return ImageDataset(
                name, classes, image, image, image, tuple(saved["mean"]), tuple(saved["std"]), False
            )
        if content == "table":
            encoding = TableEncoding.from_json(saved["columns"])
            row = Table(torch.zeros(1, len(encoding.sizes)), labels)
            about = saved["label_column"], float(saved["label_mean"]), float(saved["label_std"])
            return TableDataset(name, classes, row, row, row, encoding, *about)
        text = Texts(("text",), labels)
        data = text_dataset.from_parts(
            name, classes, text, text, text, network=settings.network
        ).for_run(folder)
        data.batches(text, batch_size=1)  # reads the tokens
        return data


def _read(data: DataSettings, root: Path | None) -> Any:
    """Return what a reader, this library's or the user's, returns for the settings that are its
    options.

    It is a data set, or the classes and three parts, :class:`Images` or :class:`Texts`.
    """
    reader = cast(Any, type(data).constructor)
    if not isinstance(data, OwnDataSettings):
        return reader(**options_of(reader, data))
    common = {field.name for field in fields(cast(Any, type(data).__base__))}
    options = {name: value for name, value in vars(data).items() if name not in common}
    source = data.path if root is None else str(root)
    if source is None:
        raise SettingsError("name your data with --data PATH")
    shares = {"valid": data.valid_share, "test": data.test_share}
    return reader(Path(source), shares=shares, seed=data.seed, limit=data.limit, **options)
