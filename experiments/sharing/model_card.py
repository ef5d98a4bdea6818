"""Model cards: the ``README.md`` of a shared run."""

from collections.abc import Iterator

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.runs.command import train_command
from probattn.experiments.runs.load import TrainedRun
from probattn.experiments.runs.pretrained import without_paths
from probattn.experiments.sharing.stored_evaluation import StoredEvaluation

HEADER = """---
library_name: probattn
pipeline_tag: {task}
tags:
- uncertainty
- {layer}
# license: choose one, such as apache-2.0 (https://huggingface.co/docs/hub/repositories-licenses)
---
"""


def model_card(run: TrainedRun, evaluation: StoredEvaluation | None) -> str:
    """Return the model card of a run: what it is, how it is used, how it was trained, and how its metrics were got."""
    is_image, is_table = isinstance(run.dataset, ImageDataset), isinstance(run.dataset, TableDataset)
    kind = "image" if is_image else "tabular" if is_table else "text"
    task = f"{kind}-classification" if run.dataset.classes else f"{kind}-regression"
    return (
        "\n".join([HEADER.format(task=task, layer=run.settings.layer.name), *_body(run, evaluation, is_image)]) + "\n"
    )


def _body(run: TrainedRun, evaluation: StoredEvaluation | None, is_image: bool) -> Iterator[str]:
    layer, data = run.settings.layer.name, run.settings.data.name
    yield f"# {run.name}\n"
    is_table, classes = isinstance(run.dataset, TableDataset), run.dataset.classes
    model = "Classifier" if classes else "Regression"
    yield f"{model} with {layer} attention, trained on `{data}` by probattn. Its answers come with uncertainty.\n"
    yield "## Use\n"
    given = "photo.png" if is_image else "rows.csv" if is_table else '--text "A text to classify."'
    yield "FOLDER is this folder, or its name USER/NAME on the hub.\n"
    yield f"```\npip install probattn\nprobattn predict FOLDER {given}\n```\n"
    yield "```python\nfrom probattn.experiments.sharing.pipeline import Pipeline\n"
    inputs = "images" if is_image else "rows" if is_table else '["A text to classify."]'
    yield f'pipeline = Pipeline.from_pretrained("FOLDER")\nprediction = pipeline.predict({inputs})'
    fields = ("probs", "entropy", "mutual_information") if classes else ("mean", "variance")
    yield ", ".join(f"prediction.{name}" for name in fields) + "\n```\n"
    if is_image:
        shape = " × ".join(map(str, run.dataset.test.images.shape[1:]))
        yield f"- Inputs: images of channels × height × width = {shape}, values 0 to 255"
    elif is_table:
        yield f"- Inputs: rows with the columns {', '.join(each.name for each in run.dataset.encoding.columns)}"
    else:
        yield f"- Inputs: texts; tokens after the first {run.settings.network.max_length} are cut off"
    yield f"- Classes ({len(classes)}): {', '.join(classes)}" if classes else f"- Output: {run.dataset.label_column}"
    yield f"- Posterior samples: {run.settings.train.num_samples if evaluation is None else evaluation.num_samples}\n"
    if classes:
        yield "The mutual information is how much samples of the attention layers disagree. It does not say whether an"
        yield f"input is like the training data. Posterior of these layers: {_verdict(run, evaluation)}.\n"
    yield "## Training\n"
    yield f"Weights of epoch {run.best_epoch}, the best one on validation data of {run.settings.epochs}.\n"
    yield f"```\n{_command(run)}\n```\n"
    yield f"{_environment(run.environment)}\n"
    yield "## Evaluation\n"
    if evaluation is None:
        yield f"Not evaluated. `probattn evaluate {run.folder.name}` does it; save the model again afterwards."
        return
    samples = f"{evaluation.num_samples} posterior samples of seed {evaluation.seed}"
    yield f"Posterior predictive on the test part of `{data}`, with {samples}, by `probattn evaluate`."
    yield f"{_environment(evaluation.hardware)}\n"
    yield "| metric | value |\n|---|---|"
    for name, value in evaluation.metrics.items():
        yield f"| {DISPLAY[name].title if name in DISPLAY else name} | {'–' if value is None else f'{value:.4f}'} |"
    if evaluation.alpha is not None:
        yield "\nPrediction sets are split-conformal (LAC), calibrated on the validation part: a set holds the"
        yield f"true class with probability {1 - evaluation.alpha:g} or more, for inputs of the same distribution."


def _verdict(run: TrainedRun, evaluation: StoredEvaluation | None) -> str:
    if evaluation is not None and evaluation.verdict:
        return evaluation.verdict
    return f"no verdict; `probattn evaluate {run.folder.name}` stores it"


def _command(run: TrainedRun) -> str:
    """Return the command that trains the run, without paths of this machine."""
    words = train_command(run.name, run.settings).split(" ")
    return " ".join(words) if run.name in PRESETS and not _has_paths(run) else f"probattn train {run.name}"


def _has_paths(run: TrainedRun) -> bool:
    flat = run.settings.flat()
    return without_paths(flat) != flat


def _environment(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" if name != "hardware" else value for name, value in values.items()) + "."
