"""Opening a trained run: its model and guide at their best epoch, with its data set or without."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from probattn import guides
from probattn.experiments.config.schema import Trust
from probattn.experiments.data.dataset import PREPROCESSING, Dataset, Part
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.runs.build import Loader, build, find_device, fitted_parts
from probattn.experiments.runs.folder import WEIGHTS, RunRecord, read_record
from probattn.experiments.runs.sources import blank_dataset, load_data
from probattn.inference.io import checkpoint
from probattn.inference.io.files import file_digest, undamaged
from probattn.models import Supervised
from probattn.threads import one_thread_at_a_time


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedRun(RunRecord):
    """The record of a run, its model and guide with the weights of its best epoch, and its data
    set.

    ``weights`` is the SHA-256 of the file of the weights.
    """

    folder: Path
    dataset: Dataset
    model: Supervised
    guide: guides.Guide
    device: str
    best_epoch: int
    weights: str

    def batches(self, data: Part, *, by_length: bool = False) -> Loader:
        """Return batches of any images, texts or rows in their order, preprocessed as in training.

        Args:
            data: the examples.
            by_length: texts from the longest to the shortest, with less padding.

        Raises:
            DatasetError: images of another size or number of channels than the network was trained
                on.
        """
        size = self.settings.data.batch_size
        return self.dataset.batches(data, batch_size=size, device=self.device, by_length=by_length)


def open_run(folder: Path, *, root: Path | None = None, trust_code: Trust = False) -> TrainedRun:
    """Open the run in a folder.

    Args:
        folder: folder of the run, as written by ``probattn train``.
        root: folder of the data sets.
        trust_code: True imports the layer, the likelihood and the data set that the folder names,
            if they are not this library's: it can run any code. Or the names that are trusted.

    Raises:
        SettingsError: the folder holds no run, or names code that is not trusted.
        CheckpointError: no epoch is finished, or the checkpoint of the best one is damaged.
        DatasetError: the data are missing, or their training or validation part is another one.
    """
    record = read_record(folder, trust_code=trust_code)
    dataset = load_data(record.settings, root).for_run(folder)
    if record.data != fitted_parts(
        dataset
    ):  # their normalisation differs, and test data may be among them
        advice = (
            "give those with --data or the environment variable PROBATTN_DATA, or train a new run"
        )
        raise DatasetError(
            f"these data of {dataset.name} are not those that {folder} was trained with: {advice}"
        )
    return _opened(folder, record, dataset)


@one_thread_at_a_time
def open_without_data(folder: Path, *, trust_code: Trust = False) -> TrainedRun:
    """Open a run with a :func:`blank_dataset`, and leave PyTorch's random state as it is.

    The function that loads its data set is not imported; ``trust_code`` as for :func:`open_run`.

    Raises:
        SettingsError, CheckpointError: as for :func:`open_run`.
        DatasetError: the preprocessing is missing or damaged.
    """
    record = read_record(folder, trust_code=trust_code, with_data=False)
    with torch.random.fork_rng(devices=[]):
        return _opened(folder, record, blank_dataset(record.settings, folder))


def build_run(
    folder: Path, record: RunRecord, dataset: Dataset, *, epoch: int, weights: str
) -> TrainedRun:
    """Build a run on its device, without its trained weights; ``weights`` is their digest."""
    device = find_device(record.settings.train.accelerator)
    model, guide = (module.to(device) for module in build(record.settings, dataset))
    parts = vars(record) | {"dataset": dataset, "model": model, "guide": guide, "device": device}
    return TrainedRun(**parts, folder=folder, best_epoch=epoch, weights=weights)


def _opened(folder: Path, record: RunRecord, dataset: Dataset) -> TrainedRun:
    path = folder / WEIGHTS
    if not path.exists():
        advice = "it has done no epoch; continue it with train --resume"
        raise checkpoint.CheckpointError(f"{folder} has no {WEIGHTS}: {advice}")
    content = checkpoint.read(path)
    epoch = check_best(folder, content["extra"])
    run = build_run(folder, record, dataset, epoch=epoch, weights=file_digest(path))
    checkpoint.restore(content, run.model, run.guide, path=path)
    return run


def check_best(folder: Path, extra: Mapping[str, Any]) -> int:
    """Check that the preprocessing of a run, and with it the order of the classes, is that of its
    weights.

    Args:
        folder: of the run.
        extra: further values of its ``best.pt``; those of earlier versions have no digest.

    Returns:
        The best epoch.

    Raises:
        CheckpointError: ``best.pt`` has no epoch.
        DatasetError: the preprocessing is missing, or another one.
    """
    path = folder / PREPROCESSING
    epoch = extra.get("epoch")
    if not isinstance(epoch, int):
        raise checkpoint.CheckpointError(
            f"{folder / WEIGHTS} is damaged, it has no epoch: train the run again"
        )
    with undamaged(path, DatasetError):
        digest = file_digest(path)
        if extra.get(PREPROCESSING, digest) != digest:
            raise ValueError("it is not that of the weights")
    return epoch
