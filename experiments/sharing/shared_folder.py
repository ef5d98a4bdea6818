"""Runs in folders that can be shared: weights, settings, preprocessing, calibration and a model card, no data."""

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import torch

from probattn.experiments.config.settings import Settings
from probattn.experiments.evaluation.calibration import CALIBRATION, Calibration
from probattn.experiments.evaluation.evaluated_run import SCORES
from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.runs.folder import RunRecord, train_command
from probattn.experiments.runs.load import TrainedRun, build_run
from probattn.experiments.runs.sources import blank_dataset
from probattn.inference.io.pretrained import WEIGHTS, read_config, save_pretrained
from probattn.inference.io.safetensors_io import load_safetensors
from probattn.threads import one_thread_at_a_time

TEMPLATE = "model_card.md.jinja"
# Files of a run's folder that go with its weights.
FILES = ("preprocessing.json", CALIBRATION)


def save_run(run: TrainedRun, save_directory: Path, *, calibration: Calibration | None) -> None:
    """Write a run to a folder that can be shared; errors are those of ``save_pretrained``.

    Args:
        run: the run, whose folder has its preprocessing.
        save_directory: the folder.
        calibration: of the run, for the model card.
    """
    content = {name: (run.folder / name).read_bytes() for name in FILES if (run.folder / name).exists()}
    record = RunRecord(run.name, run.settings, run.environment)
    config = {"run": without_paths(asdict(record)), "epoch": run.best_epoch, "weights": run.weights}
    card = model_card(run, calibration)
    save_pretrained(save_directory, run.model, run.guide, config=config, files=content, card=card)


@one_thread_at_a_time
def load_run(folder: Path) -> TrainedRun:
    """Load a shared run, and leave PyTorch's random state as it is.

    Args:
        folder: of :func:`save_run`.

    Raises:
        CheckpointError: the folder is damaged, or its files do not belong together.
        DatasetError: its preprocessing is missing or damaged.
        SettingsError, KeyError: it describes no run that this version can build.
    """
    config = read_config(folder)
    record = RunRecord.from_dict(config["run"])
    with torch.random.fork_rng(devices=[]):
        data = blank_dataset(record.settings, folder)
        run = build_run(folder, record, data, epoch=config["epoch"], weights=config["weights"])
    load_safetensors(folder / WEIGHTS, run.model, run.guide)
    return run


def model_card(run: TrainedRun, calibration: Calibration | None) -> str:
    """Return the model card of a run: what it is, how it is used, how it was trained, and its metrics, if any."""
    template = files("probattn.experiments.sharing").joinpath(TEMPLATE).read_text(encoding="utf-8")
    card = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True)
    command = train_command(run.name, Settings.from_dict(without_paths(asdict(run.settings))))
    return card.render(run=run, calibration=calibration, metrics=test_metrics(run), command=command)


def test_metrics(run: TrainedRun) -> dict[str, str]:
    """Return the metrics of the posterior predictive on the test part in a run's ``scores.csv``; empty without one."""
    path = run.folder / SCORES
    if not path.exists():
        return {}
    scores = pd.read_csv(path).query("method == 'posterior' and set == 'test'").dropna(axis="columns")
    return {DISPLAY[name].title: f"{scores[name].iloc[0]:.4f}" for name in scores if name in DISPLAY and len(scores)}


def without_paths(values: Any) -> Any:
    """Return nested settings in which absolute paths, which say much about a machine, are shortened to their names."""
    if isinstance(values, dict):
        return {key: without_paths(value) for key, value in values.items()}
    return Path(values).name if isinstance(values, str) and Path(values).is_absolute() else values
