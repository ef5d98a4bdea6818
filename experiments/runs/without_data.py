"""Opening a run, or a shared one, without its data set: the preprocessing that it saved takes the data's place."""

from pathlib import Path

import torch

from probattn.experiments.config.settings import Settings
from probattn.experiments.data import cache
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.root import data_root
from probattn.experiments.data.sealed_files import read_preprocessing
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text import tokens
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.runs.build import Dataset, build, check_memory, find_device
from probattn.experiments.runs.folder import read_best, read_record
from probattn.experiments.runs.load import TrainedRun
from probattn.guides import Guide
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.models import Classifier


def open_without_data(folder: Path) -> TrainedRun:
    """Open a run like :func:`~probattn.experiments.runs.load.open_run`, with a :func:`blank_dataset`.

    Raises:
        SettingsError: the folder holds no run.
        CheckpointError: the run has finished no epoch, or the checkpoint of the best one is missing or damaged.
        DatasetError, DamagedFileError: its preprocessing is missing or damaged.
    """
    record, best = read_record(folder), read_best(folder)
    dataset = blank_dataset(record.settings, folder)
    model, guide, device = build_for_prediction(record.settings, dataset)
    checkpoint.restore(best, model, guide, path=folder / "best.pt")
    return TrainedRun(
        folder,
        record.name,
        record.settings,
        record.environment,
        dataset,
        model,
        guide,
        device=device,
        best_epoch=best["extra"]["epoch"],
    )


def build_for_prediction(settings: Settings, dataset: Dataset) -> tuple[Classifier, Guide, str]:
    """Build model and guide of a run on its device, without touching PyTorch's random state."""
    check_memory(settings, dataset, copies=1)
    with torch.random.fork_rng(devices=[]):
        model, guide = build(settings, dataset)
    device = find_device(settings.train.accelerator)
    for module in (model, guide):
        module.to(device)
    return model, guide, torch.device(device).type


def blank_dataset(settings: Settings, folder: Path) -> Dataset:
    """Return a data set with the preprocessing of a folder, whose parts hold one blank example each.

    Args:
        settings: settings of the run.
        folder: holds ``preprocessing.json``, and for texts ``tokenizer.json`` or ``encoder.json``.

    Raises:
        DatasetError: a file is missing, or another frozen encoder; inputs of another kind.
        DamagedFileError: a file is damaged.
    """
    saved, labels = read_preprocessing(folder), torch.zeros(1, dtype=torch.long)
    try:
        kind, classes = saved["kind"], tuple(map(str, saved["classes"]))
        if kind == "images":
            blank = Images(torch.zeros(1, *map(int, saved["shape"]), dtype=torch.uint8), labels)
            mean, std = (tuple(map(float, saved[name])) for name in ("mean", "std"))
            return ImageDataset(settings.data.name, classes, blank, blank, blank, mean, std, augment=False)
        if kind == "table":
            encoding = TableEncoding.from_json(saved["columns"])
            blank = Table(torch.zeros(1, len(encoding.sizes)), labels if classes else torch.zeros(1, 1))
            scale = {} if classes else {name: float(saved[name]) for name in ("label_mean", "label_std")}
            column = str(saved["label_column"])
            return TableDataset(settings.data.name, classes, encoding, column, blank, blank, blank, **scale)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        path = folder / "preprocessing.json"
        raise CheckpointError(f"{path} is damaged: a value is missing or of another type ({error!r})") from error
    if kind != "texts":
        raise DatasetError(f"{folder} was trained on {kind!r}, which this version cannot predict without data")
    blank = Texts(("text",), labels)
    fitted = tokens.fit(settings.network, blank, cache=data_root(None) / cache.FOLDER)
    return TextDataset(settings.data.name, classes, blank, blank, blank, fitted, {}).for_run(folder)
