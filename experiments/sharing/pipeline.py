"""A trained model with its guide, preprocessing and calibration: predicts unprocessed inputs, is saved and shared."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor

from probattn.experiments.data.dataset import Part
from probattn.experiments.data.images.image_datasets import ImageDataset, Images
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.runs.load import TrainedRun, open_without_data
from probattn.experiments.sharing.answers import class_answers, number_answers
from probattn.experiments.sharing.model_card import model_card
from probattn.experiments.sharing.shared_folder import load_run, save_run
from probattn.inference import Prediction, predict
from probattn.inference.io.pretrained import CONFIG, find_pretrained, upload_pretrained

# Inputs: images ``(n, channels, height, width)``, texts, or rows of cells by column.
Values = Tensor | Sequence[str] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Model, guide, preprocessing and calibration of a run as one object.

    >>> pipeline = Pipeline.from_run("runs/digits")  # doctest: +SKIP
    >>> pipeline.save_pretrained("digits")  # doctest: +SKIP
    >>> Pipeline.from_pretrained("digits").answers(images)["set"]  # doctest: +SKIP

    Attributes:
        run: the run, without its data set.
        calibration: temperature, sets, intervals and abstention that ``probattn evaluate`` has fitted, or None.
    """

    run: TrainedRun
    calibration: Calibration | None

    @classmethod
    def open(cls, name: str | Path) -> Self:
        """Open the folder of a run, or else what :meth:`from_pretrained` takes; errors are those of the two."""
        if Path(name).exists() and not (Path(name) / CONFIG).exists():
            return cls.from_run(name)
        return cls.from_pretrained(name)

    @classmethod
    def from_run(cls, folder: str | Path) -> Self:
        """Open the run in a folder with the weights of its best epoch; its data set is not needed.

        Raises:
            SettingsError: the folder holds no run.
            CheckpointError: no epoch is finished, a damaged file, or a calibration of other weights.
            DatasetError: the preprocessing is missing or damaged.
        """
        run = open_without_data(Path(folder))
        return cls(run, Calibration.load(run.folder, weights=run.weights))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load what :meth:`save_pretrained` wrote, from a folder or from the Hugging Face hub.

        On the same machine and with as many threads, it predicts bit for bit what the saved pipeline does.

        Args:
            pretrained_model_name_or_path: folder, or the name of a model of the hub, such as ``"user/model"``.
            options: of the download, such as ``revision``, as for ``huggingface_hub.snapshot_download``.

        Raises:
            CheckpointError: the folder is damaged, or its files do not belong together.
            MissingExtraError: there is no folder of that name, and ``huggingface_hub`` is not installed.
        """
        run = load_run(find_pretrained(pretrained_model_name_or_path, **options))
        return cls(run, Calibration.load(run.folder, weights=run.weights))

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write weights, configuration, preprocessing, calibration and a model card.

        A ``README.md`` that is there already stays.
        """
        save_run(self.run, Path(save_directory), card=model_card(self.run, self.calibration))

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload what :meth:`save_pretrained` writes, and return the address of the commit.

        The model card has no licence: choose one on the hub, or save the model, edit its ``README.md`` and upload the
        folder. Options and errors are those of :func:`~probattn.inference.upload_pretrained`.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload_pretrained(folder, repo_id, **options)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities; empty for numbers."""
        return self.run.dataset.classes

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images that it takes; None for texts and rows."""
        return tuple(self.run.dataset.test.images.shape[1:]) if isinstance(self.run.dataset, ImageDataset) else None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of the rows that it takes; None for images and texts."""
        data = self.run.dataset
        return tuple(column.name for column in data.encoding.columns) if isinstance(data, TableDataset) else None

    @property
    def num_samples(self) -> int:
        """Number of posterior samples by default: that of the calibration, or else of the run's settings."""
        return self.calibration.num_samples if self.calibration else self.run.settings.train.num_samples

    def predict(
        self, inputs: Values, *, calibrated: bool = True, num_samples: int | None = None, seed: int | None = None
    ) -> Prediction:
        """Compute the posterior predictive; PyTorch's random state stays as it is.

        Calibrated probabilities are scaled by the temperature, and then have no mutual information of their own.

        Args:
            inputs: n uint8 images ``(channels, height, width)`` of :attr:`image_shape`, n texts, or n rows
                of a table, each a mapping of :attr:`columns` to cells.
            calibrated: apply the temperature, if the run has a calibration.
            num_samples, seed: of the posterior samples; default: those of the calibration.

        Raises:
            TypeError: inputs of another kind.
            DatasetError: images of another size or number of channels; a row that the columns refuse.
            ValueError: no inputs, or an empty text.
        """
        seed = seed if seed is not None else self.calibration.seed if self.calibration else 0
        batches = ((x, None, *rest) for x, _, *rest in self.run.batches(self._data(inputs)))
        options = {"num_samples": num_samples or self.num_samples, "seed": seed}
        prediction = predict(self.run.model, self.run.guide, batches, **options)
        return self.calibration.apply(prediction) if calibrated and self.calibration else prediction

    def answers(
        self, inputs: Values, *, names: Sequence[str] | None = None, by_class: bool = False, **options: Any
    ) -> pd.DataFrame:
        """Return a table with an answer to each input: class or number, uncertainty, and conformal set or interval.

        Args:
            inputs: as for :meth:`predict`.
            names: names of the inputs; default: their numbers.
            by_class: sets that hold each class with the calibration's level.
            options: ``calibrated``, ``num_samples`` and ``seed`` of :meth:`predict`.
        """
        calibration = self.calibration if options.get("calibrated", True) else None
        prediction = self.predict(inputs, **options | {"calibrated": False})
        names = names or list(map(str, range(len(prediction))))
        if not self.classes:
            return number_answers(prediction, names, calibration=calibration)
        return class_answers(prediction, names, self.classes, calibration=calibration, by_class=by_class)

    def _data(self, inputs: Any) -> Part:
        labels, data = torch.zeros(len(inputs), dtype=torch.long), self.run.dataset
        if isinstance(data, ImageDataset):
            return Images(torch.stack(list(inputs)).cpu(), labels)
        if isinstance(inputs, str | Tensor):
            raise TypeError(f"this model takes a sequence of texts or rows, got {type(inputs).__name__}")
        if isinstance(data, TableDataset):
            rows = pd.DataFrame(inputs, index=[f"row {n}" for n in range(1, len(inputs) + 1)], dtype=object)
            return Table(data.encoding.features(rows), labels)
        return Texts(tuple(inputs), labels)
