"""Runs in folders that can be shared: weights, settings, preprocessing, calibration and a model
card, no data."""

import json
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import torch
from pydantic import BaseModel

from probattn.experiments.config.schema import Trust
from probattn.experiments.config.validation import MissingCodeError, SettingsError
from probattn.experiments.data.dataset import PREPROCESSING
from probattn.experiments.data.errors import UntrustedCodeError
from probattn.experiments.evaluation.calibration import CALIBRATION, Calibration
from probattn.experiments.evaluation.decision_notes import few_examples
from probattn.experiments.evaluation.evaluated_run import SCORES
from probattn.experiments.runs.folder import RunRecord, train_command, without_paths
from probattn.experiments.runs.load import TrainedRun, build_run
from probattn.experiments.runs.sources import blank_dataset
from probattn.inference.io.files import read_json, undamaged
from probattn.inference.io.outputs import OutputError, check_place
from probattn.inference.io.pretrained import CONFIG, WEIGHTS, read_config, save_pretrained
from probattn.inference.io.safetensors_io import load_safetensors
from probattn.inference.metrics import OF_CLASSES
from probattn.threads import one_thread_at_a_time

TEMPLATE = "model_card.md.jinja"


class SharedRun(BaseModel):
    """Schema of a run in ``config.json``: its record, the epoch and the digest of its weights."""

    run: dict[str, Any]
    epoch: int
    weights: str


def save_run(run: TrainedRun, save_directory: Path, *, calibration: Calibration | None) -> None:
    """Write a run to a folder that can be shared, which may hold an earlier export of it.

    Args:
        run: the run, whose folder has its preprocessing.
        save_directory: the folder.
        calibration: of the run.

    Raises:
        OutputError: the folder holds another model, or lies in the folder of a run or model.
        OSError: a file cannot be written; all are then as before.
    """
    content = {PREPROCESSING: (run.folder / PREPROCESSING).read_bytes()}
    if calibration is not None:
        content[CALIBRATION] = calibration.to_json()
    record = RunRecord(run.name, run.settings, run.environment)
    shared = SharedRun(run=without_paths(asdict(record)), epoch=run.best_epoch, weights=run.weights)
    card = model_card(run, calibration)
    place = check_place(save_directory, inputs=[run.folder])
    check_replaceable(place, shared)
    save_pretrained(
        place, run.model, run.guide, config=shared.model_dump(), files=content, card=card
    )
    if CALIBRATION not in content:  # that of an earlier export
        (place / CALIBRATION).unlink(missing_ok=True)


def check_replaceable(folder: Path, shared: SharedRun) -> None:
    """Check that a folder holds no model, or an earlier export of a run of the same preset, data,
    network and layer.

    Raises:
        OutputError: it holds something else.
    """
    there = [path for path in folder.glob("*") if path.suffix in (".json", ".safetensors", ".pt")]
    if not there:
        return
    with suppress(Exception):  # of many types: a folder of something else
        earlier = read_json(folder / CONFIG)["config"]["run"]
        ours = json.loads(json.dumps(shared.run))
        earlier["settings"]["train"] = ours["settings"]["train"]
        if earlier["name"] == ours["name"] and earlier["settings"] == ours["settings"]:
            return
    raise OutputError(f"{there[0]} is of another model: choose another --out, or remove it")


@one_thread_at_a_time
def load_run(folder: Path, *, trust_code: Trust = False) -> TrainedRun:
    """Load a shared run, and leave PyTorch's random state as it is.

    Args:
        folder: of :func:`save_run`.
        trust_code: as for :func:`~probattn.experiments.runs.load.open_run`.

    Raises:
        CheckpointError: the folder is damaged, or its files do not belong together.
        DatasetError: its preprocessing is damaged.
        SettingsError: it describes no run that this version can build, or names code that is not
            trusted.
    """
    config = read_config(folder, PREPROCESSING)
    with undamaged(folder / CONFIG, SettingsError, passing=(UntrustedCodeError, MissingCodeError)):
        shared = SharedRun.model_validate(config)
        record = RunRecord.from_dict(
            shared.run, where=folder, trust_code=trust_code, with_data=False
        )
    with torch.random.fork_rng(devices=[]):
        data = blank_dataset(record.settings, folder)
        run = build_run(folder, record, data, epoch=shared.epoch, weights=shared.weights)
    load_safetensors(folder / WEIGHTS, run.model, run.guide)
    return run


def model_card(run: TrainedRun, calibration: Calibration | None) -> str:
    """Return the model card of a run: what it is, how it is used, how it was trained, and its
    metrics, if any."""
    template = files("probattn.experiments.sharing").joinpath(TEMPLATE).read_text(encoding="utf-8")
    card = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True)
    command = train_command(run.name, run.settings, with_paths=False)
    notes = few_examples(calibration, run.dataset.classes) if calibration else []
    return card.render(
        run=run,
        calibration=calibration,
        metrics=test_metrics(run) if calibration else {},
        command=command,
        notes=notes,
    )


def test_metrics(run: TrainedRun) -> dict[str, str]:
    """Return the metrics of the posterior predictive on the test part in a run's ``scores.csv``;
    empty without one."""
    path = run.folder / SCORES
    if not path.exists():
        return {}
    scores = (
        pd.read_csv(path).query("method == 'posterior' and set == 'test'").dropna(axis="columns")
    )
    return {
        OF_CLASSES[name].title: f"{scores[name].iloc[0]:.4f}"
        for name in scores
        if name in OF_CLASSES and len(scores)
    }
