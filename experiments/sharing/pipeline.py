"""A trained model with its guide, preprocessing and calibration: predicts unprocessed inputs, is
saved and shared."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor

from probattn import ProbabilisticAttention
from probattn.experiments.data.dataset import Part
from probattn.experiments.data.images.image_datasets import ImageDataset, Images
from probattn.experiments.data.tables.table_dataset import Table, TableDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration, OtherWeightsError
from probattn.experiments.runs.load import TrainedRun, open_without_data
from probattn.experiments.sharing.answers import class_answers, note, note_shares, number_answers
from probattn.experiments.sharing.shared_folder import load_run, save_run
from probattn.inference import Prediction, predict
from probattn.inference.io.pretrained import CONFIG, find_pretrained

_log = logging.getLogger(__name__)
# Inputs: images ``(n, channels, height, width)``, texts, or rows of cells by column.
Values = Tensor | Sequence[str] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Model, guide, preprocessing and calibration of a run as one object.

    >>> pipeline = Pipeline.from_pretrained("runs/digits")  # doctest: +SKIP
    >>> pipeline.save_pretrained("digits")  # doctest: +SKIP
    >>> Pipeline.from_pretrained("digits").answers(images)["set"]  # doctest: +SKIP

    Attributes:
        run: the run, without its data set.
        calibration: temperature, sets, intervals and abstention that ``probattn evaluate`` has
            fitted, or None.
    """

    run: TrainedRun
    calibration: Calibration | None

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, trust_code: bool = False, **options: Any
    ) -> Self:
        """Load what :meth:`save_pretrained` wrote, from a folder or the Hugging Face hub, or the
        folder of a run.

        A run that was trained further since its evaluation is not calibrated, and the log says so.
        The data set is not needed. On the same machine and with as many threads, it predicts bit
        for bit what the saved pipeline does.

        Args:
            pretrained_model_name_or_path: folder, or a model of the hub, such as
                ``"hf://user/model"``.
            trust_code: import the layer and the likelihood that the folder names, if they are not
                this library's. They can run any code: only for folders of people whom you trust.
            options: of the download, such as ``revision``, as for
                ``huggingface_hub.snapshot_download``.

        Raises:
            UntrustedCodeError: the folder names code that is not this library's.
            SettingsError: an existing folder that holds no run.
            CheckpointError: no epoch is finished, damaged files, or files that do not belong
                together.
            DatasetError: the preprocessing is missing or damaged.
            MissingExtraError: a model of the hub, and ``huggingface_hub`` is not installed.
        """
        folder = Path(pretrained_model_name_or_path)
        is_run = folder.exists() and not (folder / CONFIG).exists()
        if is_run:
            run = open_without_data(folder, trust_code=trust_code)
        else:
            found = find_pretrained(pretrained_model_name_or_path, **options)
            run = load_run(found, trust_code=trust_code)
        try:
            calibration = Calibration.load(
                run.folder, weights=run.weights, classes=len(run.dataset.classes)
            )
        except OtherWeightsError:
            if not is_run:
                raise
            message = (
                "%s was trained further since its evaluation: uncalibrated until `probattn "
                "evaluate %s`"
            )
            _log.warning(message, folder, folder)
            calibration = None
        return cls(run, calibration)

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write weights, configuration, preprocessing, calibration and a model card.

        A ``README.md`` that is there already stays.
        """
        save_run(self.run, Path(save_directory), calibration=self.calibration)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities; empty for numbers."""
        return self.run.dataset.classes

    @property
    def num_samples(self) -> int:
        """Number of posterior samples by default: that of the calibration, or else of the run's
        settings."""
        if self.calibration:
            return self.calibration.num_samples
        return self.run.settings.train.num_samples

    def predict(
        self,
        inputs: Values,
        *,
        calibrated: bool = True,
        num_samples: int | None = None,
        seed: int | None = None,
        refine: float | None = None,
    ) -> Prediction:
        """Compute the posterior predictive; PyTorch's random state stays as it is.

        Calibrated probabilities are scaled by the temperature, and then have no mutual information
        of their own.

        Args:
            inputs: n uint8 images ``(channels, height, width)`` of the size of training, n texts,
                or n rows of a table, each a mapping of the columns of training to cells.
            calibrated: apply the temperature, if the run has a calibration.
            num_samples, seed, refine: of the posterior samples; default: those of the calibration.

        Raises:
            TypeError: inputs of another kind.
            DatasetError: images of another size or number of channels; a row that the columns
                refuse.
            ValueError: no inputs, or an empty text.
        """
        if seed is None:
            seed = self.calibration.seed if self.calibration else 0
        batches = ((x, None, *masks) for x, _, *masks in self.run.batches(self._data(inputs)))
        number = num_samples or self.num_samples
        if refine is None and self.calibration:
            refine = self.calibration.refine
        prediction = predict(
            self.run.model,
            self.run.guide,
            batches,
            num_samples=number,
            seed=seed,
            refine=refine,
        )
        return self.calibration.apply(prediction) if calibrated and self.calibration else prediction

    def answers(self, inputs: Values, *, sets: str = "plain", **options: Any) -> pd.DataFrame:
        """Return a table with an answer to each input: class or number, uncertainty, and conformal
        set or interval.

        If there is anything to say, the column ``notes`` names what the network does not see of a
        text (cut or unknown tokens), the cells of a row that are unlike those of training, and an
        answer that is outside of its own set or interval.

        Args:
            inputs: as for :meth:`predict`.
            sets: kind of the conformal sets: ``plain``, ``by-class``, ``aps`` or ``raps``.
            options: ``calibrated``, ``num_samples``, ``seed`` and ``refine`` of :meth:`predict`.
        """
        calibration = self.calibration if options.get("calibrated", True) else None
        options["calibrated"] = False
        prediction = self.predict(inputs, **options)
        if self.classes:
            layers = self.run.model.modules()
            attention = [layer for layer in layers if isinstance(layer, ProbabilisticAttention)]
            answers = class_answers(
                prediction,
                self.classes,
                calibration=calibration,
                sets=sets,
                has_posterior=any(layer.is_stochastic() for layer in attention),
            )
        else:
            answers = number_answers(prediction, calibration=calibration)
        shares = note_shares(answers, self.run.dataset.unseen(self._data(inputs)))
        if shares.any(axis=None):
            answers["notes"] = shares.apply(note, axis=1)
        return answers

    def _data(self, inputs: Any) -> Part:
        labels = torch.zeros(len(inputs), dtype=torch.long)
        data = self.run.dataset
        if isinstance(data, ImageDataset):
            return Images(torch.stack(list(inputs)).cpu(), labels)
        if isinstance(inputs, str | Tensor):
            raise TypeError(
                f"this model takes a sequence of texts or rows, got {type(inputs).__name__}"
            )
        if isinstance(data, TableDataset):
            rows = pd.DataFrame(
                inputs, index=[f"row {n}" for n in range(1, len(inputs) + 1)], dtype=object
            )
            return Table(data.encoding.features(rows), labels)
        return Texts(tuple(inputs), labels)
