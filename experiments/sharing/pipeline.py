"""A trained model with its guide and preprocessing: predicts unprocessed images, texts or rows, is saved and shared."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.runs.pretrained import load_run, save_run
from probattn.experiments.runs.without_data import open_without_data
from probattn.experiments.sharing.model_card import model_card
from probattn.experiments.sharing.stored_evaluation import StoredEvaluation
from probattn.inference import Prediction, predict
from probattn.inference.io.pretrained import CONFIG, find_pretrained, upload_pretrained


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Model, guide and preprocessing of a run as one object.

    >>> pipeline = Pipeline.from_run("runs/digits")  # doctest: +SKIP
    >>> pipeline.save_pretrained("digits")  # doctest: +SKIP
    >>> Pipeline.from_pretrained("digits").predict(images).mutual_information  # doctest: +SKIP

    Attributes:
        run: the run, without its data set.
        evaluation: results of its evaluation; None if it was not evaluated.
    """

    run: TrainedRun
    evaluation: StoredEvaluation | None

    @classmethod
    def open(cls, name: str | Path, *, encoder: str | None = None) -> Self:
        """Open the folder of a run, or else what :meth:`from_pretrained` takes; errors are those of the two."""
        folder = Path(name)
        if folder.is_dir() and not (folder / CONFIG).exists():
            return cls.from_run(folder)
        return cls.from_pretrained(name, encoder=encoder)

    @classmethod
    def from_run(cls, folder: str | Path) -> Self:
        """Open the run in a folder with the weights of its best epoch; its data set is not needed.

        Raises:
            SettingsError: the folder holds no run, or a run that has changed since it was evaluated.
            CheckpointError: the run has finished no epoch, or its checkpoint is missing or damaged.
            DatasetError, DamagedFileError: its preprocessing is missing or damaged.
        """
        folder = Path(folder)
        return cls(open_without_data(folder), StoredEvaluation.of_run(folder))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        encoder: str | None = None,
    ) -> Self:
        """Load what :meth:`save_pretrained` wrote, from a folder or from the Hugging Face hub.

        On the same machine and with as many threads, it predicts bit for bit what the saved pipeline does.

        Args:
            pretrained_model_name_or_path: a folder, or a name of the hub, such as ``"user/model"``.
            force_download, token, cache_dir, local_files_only, revision: as for ``huggingface_hub``.
            encoder: folder or name of the frozen encoder whose features the model takes, if it has one; default: the
                name that was saved.

        Raises:
            CheckpointError: the folder is damaged, or its files do not belong together.
            OSError: the hub has no such model, or cannot be reached.
            MissingExtraError: no such folder, and ``huggingface_hub`` is not installed.
            DatasetError: the frozen encoder is missing, or is another one.
        """
        folder = find_pretrained(
            pretrained_model_name_or_path,
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            revision=revision,
        )
        run, evaluation = load_run(folder, encoder=encoder)
        return cls(run, None if evaluation is None else StoredEvaluation.from_json(evaluation))

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write weights, configuration, preprocessing and a model card; a ``README.md`` that is there already stays.

        Raises:
            OSError: a file cannot be written; names it.
        """
        evaluation = None if self.evaluation is None else self.evaluation.to_json()
        card = model_card(self.run, self.evaluation)
        save_run(self.run, Path(save_directory), evaluation=evaluation, card=card)

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
        """Names of the classes, in the order of the probabilities."""
        return self.run.dataset.classes

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images that it takes; None for texts and rows."""
        return tuple(self.run.dataset.test.images.shape[1:]) if isinstance(self.run.dataset, ImageDataset) else None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of the rows that it takes; None for images and texts."""
        data = self.run.dataset
        return tuple(each.name for each in data.encoding.columns) if isinstance(data, TableDataset) else None

    @property
    def num_samples(self) -> int:
        """Number of posterior samples by default: that of the evaluation, or else of the run's settings."""
        return self.run.settings.train.num_samples if self.evaluation is None else self.evaluation.num_samples

    @property
    def seed(self) -> int:
        """Seed of the samples by default: that of the evaluation, or else 0."""
        return 0 if self.evaluation is None else self.evaluation.seed

    def predict(
        self,
        inputs: Tensor | Sequence[str] | Sequence[Mapping[str, str]],
        *,
        num_samples: int | None = None,
        seed: int | None = None,
    ) -> Prediction:
        """Compute the posterior predictive; PyTorch's random state stays as it is.

        Args:
            inputs: uint8 images ``(n, channels, height, width)`` of the size of :attr:`image_shape`, n texts, or n rows
                of a table, each a mapping of :attr:`columns` to cells as text.
            num_samples, seed: number and seed of the posterior samples; default: :attr:`num_samples`, :attr:`seed`.

        Raises:
            TypeError: texts where images are expected, or the reverse.
            DatasetError: images of another size or number of channels; a row without a column, or with a cell that is
                no number in a column of numbers.
            ValueError: no inputs, or an empty text.
        """
        labels = torch.zeros(len(inputs), dtype=torch.long)
        if isinstance(self.run.dataset, ImageDataset):
            if not isinstance(inputs, Tensor):
                raise TypeError(f"this model takes uint8 images {self.image_shape}, got {type(inputs).__name__}")
            data = Images(inputs.cpu(), labels)
        elif isinstance(self.run.dataset, TableDataset):
            if isinstance(inputs, Tensor | str):
                raise TypeError(f"this model takes a sequence of rows, got {type(inputs).__name__}")
            places = [f"row {number}" for number in range(1, len(inputs) + 1)]
            data = Table(self.run.dataset.encoding.features(inputs, places), labels)
        elif isinstance(inputs, Tensor | str):
            raise TypeError(f"this model takes a sequence of texts, got {type(inputs).__name__}")
        else:
            data = Texts(tuple(inputs), labels)
        batches = ((x, None, *rest) for x, _, *rest in self.run.batches(data))
        with torch.random.fork_rng():
            torch.manual_seed(self.seed if seed is None else seed)
            return predict(self.run.model, self.run.guide, batches, num_samples=num_samples or self.num_samples)
