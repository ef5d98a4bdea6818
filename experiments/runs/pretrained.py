"""Runs in folders that can be shared: weights, settings and preprocessing, without the data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.sealed_files import PREPROCESSING
from probattn.experiments.data.text.tokens import ENCODER, TOKENIZER
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.runs.without_data import blank_dataset, build_for_prediction
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.pretrained import CONFIG, WEIGHTS, read_config, save_pretrained
from probattn.inference.io.safetensors_io import load_safetensors


@dataclass(frozen=True)
class SharedRecord:
    """The ``config`` of a shared run.

    Args:
        name: the preset's name.
        settings: of the run; of paths only the last part.
        environment: where the training was started.
        epoch: the best epoch, whose weights these are.
        evaluation: results of an evaluation, as :mod:`probattn.experiments.sharing` reads them; None without one.
    """

    name: str
    settings: Settings
    environment: dict[str, str]
    epoch: int
    evaluation: dict[str, Any] | None = None


def save_run(run: TrainedRun, save_directory: Path, *, evaluation: Mapping[str, Any] | None, card: str) -> None:
    """Write a run to a folder that can be shared; errors are those of ``save_pretrained``.

    Args:
        run: the run, whose folder has its preprocessing.
        save_directory: the folder.
        evaluation: see :class:`SharedRecord`.
        card: text of the model card.
    """
    names = [name for name in (PREPROCESSING, TOKENIZER, ENCODER) if (run.folder / name).exists()]
    files = {name: (run.folder / name).read_bytes() for name in names}
    config = {
        "name": run.name,
        "settings": without_paths(asdict(run.settings)),
        "environment": run.environment,
        "epoch": run.best_epoch,
        "evaluation": None if evaluation is None else dict(evaluation),
    }
    save_pretrained(save_directory, run.model, run.guide, config=config, files=files, card=card)


def load_run(folder: Path, *, encoder: str | None = None) -> tuple[TrainedRun, dict[str, Any] | None]:
    """Load a shared run and the results of its evaluation.

    Args:
        folder: of :func:`save_run`.
        encoder: folder or name of the frozen encoder that computes the features; default: that of the settings.

    Raises:
        CheckpointError: the folder is damaged, or its files do not belong together.
        DatasetError: a frozen encoder that is missing or another one.
    """
    config = read_config(folder)
    try:
        record = SharedRecord(**config | {"settings": Settings.from_dict(config["settings"])})
    except (SettingsError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder / CONFIG} describes no run that this version can build: {error}") from error
    settings = record.settings
    if encoder is not None:
        settings = replace(settings, network=replace(settings.network, encoder=encoder))
    dataset = blank_dataset(settings, folder)
    model, guide, device = build_for_prediction(settings, dataset)
    load_safetensors(folder / WEIGHTS, model, guide)
    parts = (folder, record.name, settings, record.environment, dataset, model, guide)
    return TrainedRun(*parts, device=device, best_epoch=record.epoch), record.evaluation


def without_paths(values: Any) -> Any:
    """Return nested settings in which absolute paths, which say much about a machine, are shortened to their names."""
    if isinstance(values, dict):
        return {key: without_paths(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [without_paths(value) for value in values]
    return Path(values).name if isinstance(values, str) and Path(values).is_absolute() else values
