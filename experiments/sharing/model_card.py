"""Model cards: the ``README.md`` of a shared run."""

import shlex
from importlib.resources import files

import jinja2
import pandas as pd

from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.evaluated_run import SCORES
from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.runs.folder import train_command
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.sharing.shared_folder import without_paths

TEMPLATE = "model_card.md.jinja"


def model_card(run: TrainedRun, calibration: Calibration | None) -> str:
    """Return the model card of a run: what it is, how it is used, how it was trained, and its metrics, if any."""
    kinds = {ImageDataset: "image", TableDataset: "tabular"}
    words = [without_paths(word.split("=", 1)) for word in shlex.split(train_command(run.name, run.settings))]
    template = files("probattn.experiments.sharing").joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown, not HTML
    return environment.from_string(template).render(
        run=run,
        kind=kinds.get(type(run.dataset), "text"),
        data=run.dataset,
        command=shlex.join(map("=".join, words)),
        calibration=calibration,
        metrics=test_metrics(run),
    )


def test_metrics(run: TrainedRun) -> dict[str, str]:
    """Return the metrics of the posterior predictive on the test part in a run's ``scores.csv``; empty without one."""
    path = run.folder / SCORES
    if not path.exists():
        return {}
    scores = pd.read_csv(path).query("method == 'posterior' and set == 'test'").dropna(axis="columns")
    return {DISPLAY[name].title: f"{scores[name].iloc[0]:.4f}" for name in scores if name in DISPLAY and len(scores)}
