"""Opening a trained run: its model and guide at their best epoch, and batches of any data for them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from probattn import guides
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.tables.table_dataset import Table
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.text_dataset import TextDataset
from probattn.experiments.runs.build import (
    Dataset,
    Loader,
    build,
    check_memory,
    find_device,
    fitted_parts,
    load_data,
)
from probattn.experiments.runs.folder import RunRecord, read_best, read_record
from probattn.inference.io import checkpoint
from probattn.models import Supervised


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's model and guide with the weights of its best epoch, and the data set it was trained on."""

    folder: Path
    name: str
    settings: Settings
    environment: dict[str, str]
    dataset: Dataset
    model: Supervised
    guide: guides.Guide
    device: str
    best_epoch: int

    def batches(self, data: Images | Texts | Table) -> Loader:
        """Return batches of any images or texts, in their order, preprocessed as in training.

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
        CheckpointError: the run has finished no epoch, or the checkpoint of the best one is missing, damaged, or of
            another epoch.
        DatasetError: its data are missing, or have another training or validation part now.
    """
    record = read_record(folder)
    settings, best = record.settings, read_best(folder)
    dataset = load_data(settings, root).for_run(folder)
    _check_parts(record, dataset, folder=folder)
    check_memory(settings, dataset, copies=1)
    model, guide = build(settings, dataset)
    device = find_device(settings.train.accelerator)
    for module in (model, guide):
        module.to(device)
    checkpoint.restore(best, model, guide, path=folder / "best.pt")
    return TrainedRun(
        folder,
        record.name,
        settings,
        record.environment,
        dataset,
        model,
        guide,
        device=torch.device(device).type,
        best_epoch=best["extra"]["epoch"],
    )


def _check_parts(record: RunRecord, dataset: Dataset, *, folder: Path) -> None:
    """Refuse other training data than the run's: their normalisation differs, and its test data may be among them."""
    now = fitted_parts(dataset)
    titles = {"train": "training", "valid": "validation"}
    changed = [titles[name] for name in now if record.data.get(name) != now[name]]
    if changed:
        raise DatasetError(
            f"the {' and '.join(changed)} part of {dataset.name} is not the one that {folder} was trained with: give "
            "the folder of those data with --data or the environment variable PROBATTN_DATA, or train a new run"
        )
