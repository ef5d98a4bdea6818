"""Runs in folders that can be shared: weights, settings, preprocessing and calibration, without the data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation.calibration import CALIBRATION
from probattn.experiments.runs.folder import RunRecord
from probattn.experiments.runs.load import TrainedRun, build_run
from probattn.experiments.runs.sources import blank_dataset
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.pretrained import CONFIG, WEIGHTS, read_config, save_pretrained
from probattn.inference.io.safetensors_io import load_safetensors

# Files of a run's folder that go with its weights.
FILES = ("preprocessing.json", "tokenizer.json", "encoder.json", CALIBRATION)


def save_run(run: TrainedRun, save_directory: Path, *, card: str) -> None:
    """Write a run to a folder that can be shared; errors are those of ``save_pretrained``.

    Args:
        run: the run, whose folder has its preprocessing.
        save_directory: the folder.
        card: text of the model card.
    """
    files = {name: (run.folder / name).read_bytes() for name in FILES if (run.folder / name).exists()}
    record = RunRecord(run.name, run.settings, run.environment)
    config = {"run": without_paths(asdict(record)), "epoch": run.best_epoch, "weights": run.weights}
    save_pretrained(save_directory, run.model, run.guide, config=config, files=files, card=card)


def load_run(folder: Path) -> TrainedRun:
    """Load a shared run, and leave PyTorch's random state as it is.

    Args:
        folder: of :func:`save_run`.

    Raises:
        CheckpointError: the folder is damaged, or its files do not belong together.
        DatasetError: its preprocessing is missing or damaged.
    """
    config = read_config(folder)
    try:
        record, epoch, weights = RunRecord.from_dict(config["run"]), config["epoch"], config["weights"]
    except (SettingsError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder / CONFIG} describes no run that this version can build: {error}") from error
    with torch.random.fork_rng(devices=[]):
        run = build_run(folder, record, blank_dataset(record.settings, folder), epoch=epoch, weights=weights)
    load_safetensors(folder / WEIGHTS, run.model, run.guide)
    return run


def without_paths(values: Any) -> Any:
    """Return nested settings in which absolute paths, which say much about a machine, are shortened to their names."""
    if isinstance(values, dict):
        return {key: without_paths(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [without_paths(value) for value in values]
    return Path(values).name if isinstance(values, str) and Path(values).is_absolute() else values
