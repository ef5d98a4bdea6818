"""A trained run, opened: its model and guide at their best epoch, and batches of its data or of other images."""

from dataclasses import dataclass
from pathlib import Path

import torch

from probattn import guides
from probattn.experiments.config.settings import Settings
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.images.loader import ImageLoader
from probattn.experiments.data.text.datasets import TextDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.loader import TextLoader
from probattn.experiments.runs import train
from probattn.experiments.runs.folder import read_settings
from probattn.inference import CheckpointError, load
from probattn.models import Classifier


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's model and guide, with the weights of its best epoch, and what they were trained on."""

    folder: Path
    name: str
    settings: Settings
    dataset: ImageDataset | TextDataset
    model: Classifier
    guide: guides.Guide
    device: str
    best_epoch: int

    def batches(self, data: Images | Texts) -> ImageLoader | TextLoader:
        """Batches of any images or texts, in their order, as the network wants them.

        Raises:
            DatasetError: images of another size or number of channels than the network was trained on.
        """
        return self.dataset.batches(data, batch_size=self.settings.data.batch_size, device=self.device)


def open_run(folder: Path, *, root: Path | None = None) -> TrainedRun:
    """Opens a run's folder.

    Args:
        folder: as ``probattn train`` made it.
        root: where data sets lie.

    Raises:
        SettingsError: the folder holds no run.
        CheckpointError: the run has finished no epoch, or its best one is damaged.
        DatasetError: its data are missing.
    """
    settings, name = read_settings(folder)
    best = folder / "best.pt"
    if not best.exists():
        raise CheckpointError(f"{folder} has no best.pt: the run has finished no epoch; go on with train --resume")
    dataset = train.load_data(settings, root).for_run(folder)
    model, guide = train.build(settings, dataset)
    device = train.find_device(settings.train.accelerator)
    for module in (model, guide):
        module.to(device)
    epoch = load(best, model, guide)["epoch"]
    return TrainedRun(folder, name, settings, dataset, model, guide, torch.device(device).type, epoch)
