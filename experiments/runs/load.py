"""Opening a trained run: its model and guide at their best epoch, with its data set or without."""

from dataclasses import dataclass
from pathlib import Path

import torch

from probattn import guides
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.sealed_files import read_preprocessing
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset, from_parts
from probattn.experiments.runs.build import Loader, build, find_device, fitted_parts
from probattn.experiments.runs.folder import WEIGHTS, RunRecord, read_record, weights_digest
from probattn.experiments.runs.sources import Dataset, load_data
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.models import Supervised


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's model and guide with the weights of its best epoch, and its data set.

    ``weights`` is the SHA-256 of the file of the weights.
    """

    folder: Path
    name: str
    settings: Settings
    environment: dict[str, str]
    dataset: Dataset
    model: Supervised
    guide: guides.Guide
    device: str
    best_epoch: int
    weights: str

    def batches(self, data: Images | Texts | Table) -> Loader:
        """Return batches of any images, texts or rows in their order, preprocessed as in training.

        Raises:
            DatasetError: images of another size or number of channels than the network was trained on.
        """
        return self.dataset.batches(data, batch_size=self.settings.data.batch_size, device=self.device)

    def batches_by_length(self, data: Images | Texts | Table) -> Loader:
        """Return batches of texts from the longest to the shortest, with less padding; of other data :meth:`batches`.

        Raises:
            DatasetError: as for :meth:`batches`.
        """
        if not isinstance(self.dataset, TextDataset):
            return self.batches(data)
        options = {"batch_size": self.settings.data.batch_size, "device": self.device}
        return self.dataset.batches(data, **options, by_length=True)


def open_run(folder: Path, *, root: Path | None = None) -> TrainedRun:
    """Open the run in a folder.

    Args:
        folder: folder of the run, as written by ``probattn train``.
        root: folder of the data sets.

    Raises:
        SettingsError: the folder holds no run.
        CheckpointError: no epoch is finished, or the checkpoint of the best one is damaged.
        DatasetError: the data are missing, or their training or validation part is another one.
    """
    record = read_record(folder)
    _check_weights(folder)
    dataset = load_data(record.settings, root).for_run(folder)
    if record.data != fitted_parts(dataset):  # their normalisation differs, and test data may be among them
        raise DatasetError(
            f"the training or validation part of {dataset.name} is not the one that {folder} was trained with: give "
            "the folder of those data with --data or the environment variable PROBATTN_DATA, or train a new run"
        )
    return _opened(folder, record, dataset)


def open_without_data(folder: Path) -> TrainedRun:
    """Open a run with a :func:`blank_dataset`, and leave PyTorch's random state as it is.

    Raises:
        SettingsError, CheckpointError: as for :func:`open_run`.
        DatasetError: the preprocessing is missing or damaged.
    """
    record = read_record(folder)
    _check_weights(folder)
    with torch.random.fork_rng(devices=[]):
        return _opened(folder, record, blank_dataset(record.settings, folder))


def build_for_prediction(settings: Settings, dataset: Dataset) -> tuple[Supervised, guides.Guide, str]:
    """Build model and guide of a run on its device, which is the third value."""
    device = find_device(settings.train.accelerator)
    model, guide = (module.to(device) for module in build(settings, dataset))
    return model, guide, device


def blank_dataset(settings: Settings, folder: Path) -> Dataset:
    """Return a data set with the preprocessing of a folder, whose parts hold one blank example.

    Args:
        settings: settings of the run.
        folder: holds ``preprocessing.json``, and for texts ``tokenizer.json`` or ``encoder.json``.

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
            blank = Table(torch.zeros(1, len(encoding.sizes)), labels if classes else torch.zeros(1, 1))
            scale = {} if classes else {key: float(saved[key]) for key in ("label_mean", "label_std")}
            return TableDataset(name, classes, encoding, saved["label_column"], *[blank] * 3, **scale)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DatasetError(f"the preprocessing in {folder} is damaged ({error!r}); restore it from a copy") from error
    blank = Texts(("text",), labels)
    return from_parts(name, classes, *[blank] * 3, network=settings.network).for_run(folder)


def _check_weights(folder: Path) -> None:
    if not (folder / WEIGHTS).exists():
        raise CheckpointError(f"{folder} has no {WEIGHTS}: the run has done no epoch; continue with train --resume")


def _opened(folder: Path, record: RunRecord, dataset: Dataset) -> TrainedRun:
    content = checkpoint.read(folder / WEIGHTS)
    model, guide, device = build_for_prediction(record.settings, dataset)
    checkpoint.restore(content, model, guide, path=folder / WEIGHTS)
    about = folder, record.name, record.settings, record.environment
    epoch, weights = content["extra"]["epoch"], weights_digest(folder)
    return TrainedRun(*about, dataset, model, guide, device=device, best_epoch=epoch, weights=weights)
